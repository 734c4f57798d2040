// SPDX-License-Identifier: Apache-2.0 OR MIT
// Programs of Kafka Streams with a table in RocksDB, unmodified, for runs on a store. A program keeps the
// newest value of each key of the topic `numbers`. PROGRAM is `once` (exactly-once) or `least`
// (at-least-once).
//
//   StreamsTest run BROKER DIRECTORY PROGRAM...
//       runs programs until it is killed or its standard input ends; the line `show PROGRAM FILE` writes a
//       program's table, as soon as it has all records of the topic; prints `restoring`, `batch` and
//       `restored` as tables are rebuilt from their changelogs. -Dbatch.delay=MS makes that last longer.
//   StreamsTest reset BROKER DIRECTORY PROGRAM   wipes the local state, as KafkaStreams.cleanUp does
//   StreamsTest feed BROKER SEED COUNT KEYS LENGTH
//       writes COUNT records, a fifth of which remove a key, with values shorter than LENGTH
//   StreamsTest expect BROKER DIRECTORY TOPIC...
//       writes to DIRECTORY/TOPIC what the table must be, by `numbers` or by a table's changelog,
//       `streams-PROGRAM-newest-changelog`
//   StreamsTest topic BROKER                     makes the topic
//   StreamsTest forget BROKER PROGRAM            removes all topics and how far the program was: with
//                                                `reset` it begins anew
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.*;
import org.rocksdb.Options;

public class StreamsTest {
  static final String TOPIC = "numbers";
  static final String TABLE = "newest";
  static final int PARTITIONS = 2;

  public static void main(String[] arguments) throws Exception {
    String broker = arguments[1];
    switch (arguments[0]) {
      case "topic": topic(broker); break;
      case "forget": forget(broker, arguments[2]); break;
      case "feed":
        feed(broker, Long.parseLong(arguments[2]), Integer.parseInt(arguments[3]),
            Integer.parseInt(arguments[4]), Integer.parseInt(arguments[5]));
        break;
      case "expect":
        for (String topic : Arrays.asList(arguments).subList(3, arguments.length)) {
          write(Path.of(arguments[2], topic), expected(broker, topic));
        }
        break;
      case "run":
        run(broker, arguments[2], Arrays.asList(arguments).subList(3, arguments.length));
        break;
      case "reset":
        try (KafkaStreams streams =
            new KafkaStreams(topology(), settings(broker, arguments[2], arguments[3]))) {
          streams.cleanUp();
        }
        break;
      default: throw new IllegalArgumentException(arguments[0]);
    }
  }

  // Values go to blob files, which are collected.
  public static class Blobs implements RocksDBConfigSetter {
    @Override
    public void setConfig(String store, Options options, Map<String, Object> configs) {
      options.setEnableBlobFiles(true).setMinBlobSize(256).setEnableBlobGarbageCollection(true)
          .setBlobFileSize(1 << 20).setWriteBufferSize(1 << 20);
    }

    @Override
    public void close(String store, Options options) {}
  }

  static Properties settings(String broker, String directory, String program) {
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-" + program);
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, broker);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, directory);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG,
        program.equals("once") ? StreamsConfig.EXACTLY_ONCE_V2 : StreamsConfig.AT_LEAST_ONCE);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
    settings.put(StreamsConfig.ROCKSDB_CONFIG_SETTER_CLASS_CONFIG, Blobs.class);
    settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    // The broker soon takes a program that was killed for gone.
    settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 3000);
    settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 500);
    settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 5000);
    settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    return settings;
  }

  static Topology topology() {
    StreamsBuilder builder = new StreamsBuilder();
    builder.table(TOPIC, Consumed.with(Serdes.String(), Serdes.String()),
        Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(TABLE)
            .withKeySerde(Serdes.String()).withValueSerde(Serdes.String()).withCachingDisabled());
    return builder.build();
  }

  static void topic(String broker) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", broker))) {
      admin.createTopics(List.of(new NewTopic(TOPIC, PARTITIONS, (short) 1))).all().get();
    } catch (ExecutionException error) {
      if (!(error.getCause() instanceof TopicExistsException)) throw error;
    }
  }

  static void forget(String broker, String program) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", broker))) {
      admin.deleteConsumerGroups(List.of("streams-" + program)).all().get();
      admin.deleteTopics(admin.listTopics().names().get()).all().get();
      while (!admin.listTopics().names().get().isEmpty()) Thread.sleep(100);
    }
  }

  static void feed(String broker, long seed, int count, int keys, int length)
      throws Exception {
    Random random = new Random(seed);
    Map<String, Object> settings = Map.of("bootstrap.servers", broker, "acks", "all",
        "enable.idempotence", true);
    try (Producer<String, String> producer =
        new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
      for (int number = 0; number < count; number++) {
        String key = "key" + random.nextInt(keys);
        String value = random.nextInt(5) == 0 ? null
            : seed + ":" + number + ":" + "x".repeat(random.nextInt(length));
        producer.send(new ProducerRecord<>(TOPIC, key, value), (done, error) -> {
          if (error != null) throw new IllegalStateException(error);
        });
      }
      producer.flush();
    }
  }

  // Gives `each` all records of a topic, in the order of each partition. Returns where partitions end.
  static Map<TopicPartition, Long> records(String broker, String topic,
      java.util.function.Consumer<ConsumerRecord<String, String>> each) {
    Map<String, Object> settings = Map.of("bootstrap.servers", broker,
        "isolation.level", "read_committed");
    try (Consumer<String, String> consumer =
        new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      List<TopicPartition> parts = new ArrayList<>();
      for (int part = 0; part < PARTITIONS; part++) parts.add(new TopicPartition(topic, part));
      consumer.assign(parts);
      consumer.seekToBeginning(parts);
      Map<TopicPartition, Long> ends = consumer.endOffsets(parts);
      while (parts.stream().anyMatch(part -> consumer.position(part) < ends.get(part))) {
        consumer.poll(Duration.ofSeconds(1)).forEach(each);
      }
      return ends;
    }
  }

  static SortedMap<String, String> expected(String broker, String topic) {
    SortedMap<String, String> table = new TreeMap<>();
    records(broker, topic, record -> {
      if (record.value() == null) table.remove(record.key());
      else table.put(record.key(), record.value());
    });
    return table;
  }

  // Whoever waits for the file finds it complete.
  static void write(Path file, SortedMap<String, String> table) throws IOException {
    StringBuilder text = new StringBuilder();
    table.forEach((key, value) -> text.append(key).append(' ').append(value).append('\n'));
    Path made = Path.of(file + ".new");
    Files.writeString(made, text.append("end ").append(table.size()).append('\n'));
    Files.move(made, file, StandardCopyOption.ATOMIC_MOVE);
  }

  // Tells on standard output what is restored, for kills at that moment.
  static class Restores implements StateRestoreListener {
    final int delay = Integer.getInteger("batch.delay", 0);

    @Override
    public void onRestoreStart(TopicPartition part, String store, long from, long to) {
      System.out.println("restoring " + part + " from " + from + " to " + to);
    }

    @Override
    public void onBatchRestored(TopicPartition part, String store, long offset, long count) {
      System.out.println("batch " + part + " " + offset);
      try {
        Thread.sleep(delay);
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
      }
    }

    @Override
    public void onRestoreEnd(TopicPartition part, String store, long count) {
      System.out.println("restored " + part + " " + count);
    }
  }

  static void run(String broker, String directory, List<String> programs) throws Exception {
    Map<String, KafkaStreams> running = new LinkedHashMap<>();
    for (String program : programs) {
      KafkaStreams streams = new KafkaStreams(topology(), settings(broker, directory, program));
      streams.setUncaughtExceptionHandler(error -> {
        error.printStackTrace();
        return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler
            .StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
      });
      streams.setGlobalStateRestoreListener(new Restores());
      running.put(program, streams);
    }
    running.values().forEach(KafkaStreams::start);
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = input.readLine()) != null && line.startsWith("show "); ) {
      String[] words = line.split(" ");
      show(broker, words[1], running.get(words[1]), Path.of(words[2]));
    }
    running.values().forEach(KafkaStreams::close);
  }

  static void show(String broker, String program, KafkaStreams streams, Path file)
      throws Exception {
    while (streams.state() != KafkaStreams.State.RUNNING || behind(broker, program)) {
      if (streams.state() == KafkaStreams.State.ERROR
          || streams.state() == KafkaStreams.State.NOT_RUNNING) System.exit(1);
      Thread.sleep(100);
    }
    SortedMap<String, String> table = new TreeMap<>();
    ReadOnlyKeyValueStore<String, String> store = streams.store(
        StoreQueryParameters.fromNameAndType(TABLE, QueryableStoreTypes.keyValueStore()));
    try (KeyValueIterator<String, String> each = store.all()) {
      each.forEachRemaining(entry -> table.put(entry.key, entry.value));
    }
    write(file, table);
  }

  // Whether records of the topic are not in the table yet.
  static boolean behind(String broker, String program) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", broker))) {
      Map<TopicPartition, OffsetSpec> latest = new HashMap<>();
      for (int part = 0; part < PARTITIONS; part++) {
        latest.put(new TopicPartition(TOPIC, part), OffsetSpec.latest());
      }
      var ends = admin.listOffsets(latest).all().get();
      var done = admin.listConsumerGroupOffsets("streams-" + program)
          .partitionsToOffsetAndMetadata().get();
      for (var part : latest.keySet()) {
        long at = done.get(part) == null ? 0 : done.get(part).offset();
        if (at < ends.get(part).offset()) return true;
      }
      return false;
    }
  }
}
