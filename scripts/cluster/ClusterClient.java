// The client of scripts/cluster: writes records to a topic, says which are acknowledged, and reads the
// topic from a chosen replica. It is told what to do by lines on standard input, and answers by lines on
// standard output, so that one process serves a whole run.
//
//     topic NAME PARTITIONS          makes the topic, three replicas
//     load NAME FIRST SEED RATE      writes records FIRST, FIRST+1, ... until `stop`:
//                                    "ack NUMBER PARTITION OFFSET", "unknown NUMBER REASON"
//     stop                           "stopped NEXT" once each record has its answer
//     state NAME                     "state ISR LAG": the smallest set in sync, the largest lag of a voter
//     read NAME RACK SECONDS SEED    "record PARTITION OFFSET NUMBER", "bad ...", then "read RACK done" or
//                                    "read RACK stuck ..."
//     produce NAME LENGTH SECONDS PRODUCERS FLIGHT LIMIT, consume NAME SECONDS RACK...
//                                    a load, measured: "produced ...", "consumed ..." (see Bench.java)
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.QuorumInfo;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class ClusterClient {
    static String brokers;
    static volatile boolean loading;
    static Thread loader;

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static Properties common() {
        Properties p = new Properties();
        p.put("bootstrap.servers", brokers);
        p.put("reconnect.backoff.ms", "100");
        p.put("reconnect.backoff.max.ms", "500");
        p.put("request.timeout.ms", "5000");
        return p;
    }

    // What record `number` holds: 50 bytes to 8 KiB, a few of 100 KiB.
    static byte[] value(long seed, long number) {
        SplittableRandom random = new SplittableRandom(seed * 1_000_003 + number);
        int length = random.nextInt(100) == 0 ? 100_000 : 50 + random.nextInt(8_000);
        byte[] bytes = new byte[length];
        random.nextBytes(bytes);
        return bytes;
    }

    static void load(String topic, long first, long seed, int rate) {
        Properties p = common();
        p.put("acks", "all");
        p.put("enable.idempotence", "true");
        p.put("linger.ms", "2");
        p.put("delivery.timeout.ms", "40000");
        p.put("max.block.ms", "10000");
        long number = first;
        Semaphore room = new Semaphore(100);
        long started = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer())) {
            while (loading) {
                if (!room.tryAcquire(100, TimeUnit.MILLISECONDS)) continue;
                long due = started + (number - first) * 1_000_000_000L / rate - System.nanoTime();
                if (due > 0) TimeUnit.NANOSECONDS.sleep(due);
                long mine = number++;
                byte[] key = Long.toString(mine).getBytes();
                producer.send(new ProducerRecord<>(topic, key, value(seed, mine)), (where, error) -> {
                    room.release();
                    if (error == null) say("ack " + mine + " " + where.partition() + " " + where.offset());
                    else say("unknown " + mine + " " + error.getClass().getSimpleName());
                });
            }
            producer.flush();
        } catch (Exception e) {
            say("error load: " + e);
        }
        say("stopped " + number);
    }

    static void state(String topic) throws Exception {
        try (Admin admin = Admin.create(common())) {
            int isr = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions()
                    .stream().mapToInt(p -> p.isr().size()).min().orElse(0);
            QuorumInfo quorum = admin.describeMetadataQuorum().quorumInfo().get();
            long newest = quorum.voters().stream().mapToLong(v -> v.logEndOffset()).max().orElse(0);
            StringBuilder lags = new StringBuilder();
            for (QuorumInfo.ReplicaState v : quorum.voters()) {
                lags.append(' ').append(v.replicaId()).append(':').append(newest - v.logEndOffset());
            }
            say("state " + isr + lags);
        }
    }

    // Has a consumer read all of a topic from its beginning; where its partitions end.
    static Map<TopicPartition, Long> assignAll(KafkaConsumer<byte[], byte[]> consumer, String topic) {
        List<TopicPartition> parts = new ArrayList<>();
        for (PartitionInfo info : consumer.partitionsFor(topic)) {
            parts.add(new TopicPartition(topic, info.partition()));
        }
        consumer.assign(parts);
        consumer.seekToBeginning(parts);
        return consumer.endOffsets(parts);
    }

    static void read(String topic, String rack, int seconds, long seed) {
        Properties p = common();
        p.put("client.rack", rack);
        p.put("metadata.max.age.ms", "1000");
        p.put("fetch.max.wait.ms", "100");
        p.put("default.api.timeout.ms", String.valueOf(seconds * 1000));
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            Map<TopicPartition, Long> ends = assignAll(consumer, topic);
            Set<TopicPartition> parts = ends.keySet();
            for (TopicPartition part : parts) {
                long begin = consumer.position(part);
                if (begin != 0) say("bad " + part.partition() + " 0 begins-at-" + begin);
            }
            while (true) {
                boolean done = true;
                for (TopicPartition part : parts) done &= consumer.position(part) >= ends.get(part);
                if (done) break;
                if (System.nanoTime() > end) {
                    StringBuilder at = new StringBuilder("read " + rack + " stuck");
                    for (TopicPartition part : parts) {
                        at.append(" ").append(part.partition()).append(":").append(consumer.position(part))
                                .append("/").append(ends.get(part));
                    }
                    say(at.toString());
                    return;
                }
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    long number = Long.parseLong(new String(r.key()));
                    boolean same = Arrays.equals(r.value(), value(seed, number));
                    say((same ? "record " : "bad ") + r.partition() + " " + r.offset() + " " + number);
                }
            }
            say("read " + rack + " done");
        } catch (Exception e) {
            say("read " + rack + " stuck " + e.toString().replace('\n', ' '));
        }
    }

    public static void main(String[] arguments) throws Exception {
        brokers = arguments[0];
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String[] w = line.split(" ");
            try {
                switch (w[0]) {
                    case "topic":
                        try (Admin admin = Admin.create(common())) {
                            NewTopic made = new NewTopic(w[1], Integer.parseInt(w[2]), (short) 3);
                            admin.createTopics(List.of(made)).all().get();
                        }
                        say("topic");
                        break;
                    case "load":
                        loading = true;
                        loader = new Thread(() -> load(w[1], Long.parseLong(w[2]), Long.parseLong(w[3]),
                                Integer.parseInt(w[4])));
                        loader.start();
                        break;
                    case "stop":
                        loading = false;
                        break;
                    case "state":
                        state(w[1]);
                        break;
                    case "read":
                        read(w[1], w[2], Integer.parseInt(w[3]), Long.parseLong(w[4]));
                        break;
                    case "produce":
                        say("produced " + Bench.produce(w[1], Integer.parseInt(w[2]), Integer.parseInt(w[3]),
                                Integer.parseInt(w[4]), Integer.parseInt(w[5]), Long.parseLong(w[6])));
                        break;
                    case "consume":
                        say("consumed " + Bench.consume(w[1], Integer.parseInt(w[2]),
                                Arrays.asList(w).subList(3, w.length)));
                        break;
                    default:
                        say("error unknown command " + line);
                }
            } catch (Exception e) {
                say("error " + w[0] + ": " + e.toString().replace('\n', ' '));
            }
        }
    }
}
