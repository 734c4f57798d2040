// SPDX-License-Identifier: Apache-2.0 OR MIT
// A program of Kafka Streams with a table in RocksDB, unmodified, for runs on a store.
//
//   StreamsTest run BROKER DIRECTORY          keeps the newest value of each key of the topic `numbers`,
//                                             exactly once, until it is killed or told to end by a line
//                                             on standard input; `show` prints the table
//   StreamsTest reset BROKER DIRECTORY        wipes the local state, as KafkaStreams.cleanUp does
//   StreamsTest feed BROKER SEED COUNT KEYS   writes COUNT records, a fifth of which remove a key
//   StreamsTest expect BROKER TOPIC           prints what the table must be, by `numbers` or by the
//                                             table's changelog, `streams-test-newest-changelog`
//   StreamsTest topic BROKER                  makes the topic
//   StreamsTest forget BROKER                 removes all topics and how far the program was: with
//                                             `reset` it begins anew
import java.io.BufferedReader;
import java.io.InputStreamReader;
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
      case "forget": forget(broker); break;
      case "feed":
        feed(broker, Long.parseLong(arguments[2]), Integer.parseInt(arguments[3]),
            Integer.parseInt(arguments[4]));
        break;
      case "expect": print(expected(broker, arguments[2])); break;
      case "run": run(broker, arguments[2]); break;
      case "reset":
        try (KafkaStreams streams = new KafkaStreams(topology(), settings(broker, arguments[2]))) {
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

  static Properties settings(String broker, String directory) {
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-test");
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, broker);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, directory);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
    settings.put(StreamsConfig.ROCKSDB_CONFIG_SETTER_CLASS_CONFIG, Blobs.class);
    settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
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

  static void forget(String broker) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", broker))) {
      admin.deleteConsumerGroups(List.of("streams-test")).all().get();
      admin.deleteTopics(admin.listTopics().names().get()).all().get();
      while (!admin.listTopics().names().get().isEmpty()) Thread.sleep(100);
    }
  }

  static void feed(String broker, long seed, int count, int keys) throws Exception {
    Random random = new Random(seed);
    Map<String, Object> settings = Map.of("bootstrap.servers", broker, "acks", "all",
        "enable.idempotence", true);
    try (Producer<String, String> producer =
        new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
      for (int number = 0; number < count; number++) {
        String key = "key" + random.nextInt(keys);
        String value = random.nextInt(5) == 0 ? null
            : seed + ":" + number + ":" + "x".repeat(random.nextInt(2000));
        producer.send(new ProducerRecord<>(TOPIC, key, value), (done, error) -> {
          if (error != null) throw new IllegalStateException(error);
        });
      }
      producer.flush();
    }
  }

  static SortedMap<String, String> expected(String broker, String topic) {
    Map<String, Object> settings = Map.of("bootstrap.servers", broker,
        "isolation.level", "read_committed");
    SortedMap<String, String> table = new TreeMap<>();
    try (Consumer<String, String> consumer =
        new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      List<TopicPartition> parts = new ArrayList<>();
      for (int part = 0; part < PARTITIONS; part++) parts.add(new TopicPartition(topic, part));
      consumer.assign(parts);
      consumer.seekToBeginning(parts);
      Map<TopicPartition, Long> ends = consumer.endOffsets(parts);
      while (parts.stream().anyMatch(part -> consumer.position(part) < ends.get(part))) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
          if (record.value() == null) table.remove(record.key());
          else table.put(record.key(), record.value());
        }
      }
    }
    return table;
  }

  static void print(SortedMap<String, String> table) {
    StringBuilder text = new StringBuilder();
    table.forEach((key, value) -> text.append(key).append(' ').append(value).append('\n'));
    System.out.print(text.append("end ").append(table.size()).append('\n'));
    System.out.flush();
  }

  static void run(String broker, String directory) throws Exception {
    KafkaStreams streams = new KafkaStreams(topology(), settings(broker, directory));
    streams.setUncaughtExceptionHandler(error -> {
      error.printStackTrace();
      return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler
          .StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
    });
    streams.start();
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = input.readLine()) != null && line.equals("show"); ) {
      while (streams.state() != KafkaStreams.State.RUNNING || behind(broker, streams)) {
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
      print(table);
    }
    streams.close();
  }

  // Whether records of the topic are not in the table yet.
  static boolean behind(String broker, KafkaStreams streams) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", broker))) {
      Map<TopicPartition, OffsetSpec> latest = new HashMap<>();
      for (int part = 0; part < PARTITIONS; part++) {
        latest.put(new TopicPartition(TOPIC, part), OffsetSpec.latest());
      }
      var ends = admin.listOffsets(latest).all().get();
      var done = admin.listConsumerGroupOffsets("streams-test").partitionsToOffsetAndMetadata().get();
      for (var part : latest.keySet()) {
        long at = done.get(part) == null ? 0 : done.get(part).offset();
        if (at < ends.get(part).offset()) return true;
      }
      return false;
    }
  }
}
