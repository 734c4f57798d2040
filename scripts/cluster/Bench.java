// The load of scripts/cluster.sh bench for Kafka: part of ClusterClient, which says how it is called.
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class Bench {
    // Each producer has `flight` records on their way; the latency is that from send to acknowledgement. Ends
    // after `seconds`, or once `limit` bytes were sent.
    static String produce(String topic, int length, int seconds, int count, int flight, long limit)
            throws Exception {
        Properties p = ClusterClient.common();
        p.put("acks", "all");
        p.put("enable.idempotence", "true");
        p.put("linger.ms", "2");
        p.put("buffer.memory", "16777216");
        p.put("request.timeout.ms", "30000");
        // Random, so that nothing on the way makes it shorter.
        byte[] value = new byte[length];
        new SplittableRandom(topic.hashCode()).nextBytes(value);
        ConcurrentLinkedQueue<KafkaProducer<byte[], byte[]>> producers = new ConcurrentLinkedQueue<>();
        try {
            for (int i = 0; i < count; i++) {
                producers.add(new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer()));
            }
            // Connections and identities are made before the clock starts.
            for (KafkaProducer<byte[], byte[]> producer : producers) {
                for (PartitionInfo part : producer.partitionsFor(topic)) {
                    producer.send(new ProducerRecord<>(topic, part.partition(), null, value)).get();
                }
            }
            ConcurrentLinkedQueue<KafkaProducer<byte[], byte[]>> left = new ConcurrentLinkedQueue<>(producers);
            AtomicLong room = new AtomicLong(limit);
            long end = System.nanoTime() + seconds * 1_000_000_000L;
            return Latencies.of(count, mine -> {
                KafkaProducer<byte[], byte[]> producer = left.remove();
                Semaphore free = new Semaphore(flight);
                for (long number = 0; System.nanoTime() < end && room.get() > 0; ) {
                    if (!free.tryAcquire(100, TimeUnit.MILLISECONDS)) continue;
                    room.addAndGet(-length);
                    byte[] key = Long.toString(number++).getBytes();
                    long sent = System.nanoTime();
                    producer.send(new ProducerRecord<>(topic, key, value), (where, error) -> {
                        free.release();
                        if (error == null) mine.add(System.nanoTime() - sent, length);
                        else mine.fail();
                    });
                }
                producer.flush();
            });
        } finally {
            for (KafkaProducer<byte[], byte[]> producer : producers) producer.close();
        }
    }

    // Reads a topic from the replica of each rack, again and again, for a share of the time. Answers with the
    // number of records before what Latencies says, whose latencies are those of polls that brought records.
    static String consume(String topic, int seconds, List<String> racks) throws Exception {
        Latencies polls = new Latencies();
        long records = 0, elapsed = 0;
        for (String rack : racks) {
            Properties p = ClusterClient.common();
            p.put("client.rack", rack);
            // A request at the end of the topic would hold up the next pass over it for so long.
            p.put("fetch.max.wait.ms", "1");
            p.put("max.poll.records", "100000");
            try (KafkaConsumer<byte[], byte[]> consumer =
                    new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                Map<TopicPartition, Long> ends = ClusterClient.assignAll(consumer, topic);
                Set<TopicPartition> parts = ends.keySet();
                // The first answer of a leader names the replica of the rack.
                for (int i = 0; i < 20; i++) consumer.poll(Duration.ofMillis(20));
                consumer.seekToBeginning(parts);
                long begun = System.nanoTime(), end = begun + seconds * 1_000_000_000L / racks.size();
                while (System.nanoTime() < end) {
                    long asked = System.nanoTime(), length = 0;
                    int count = 0;
                    for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                        length += r.serializedValueSize();
                        count++;
                    }
                    if (count > 0) polls.add(System.nanoTime() - asked, length);
                    records += count;
                    boolean done = true;
                    for (TopicPartition part : parts) done &= consumer.position(part) >= ends.get(part);
                    if (done) consumer.seekToBeginning(parts);
                }
                elapsed += System.nanoTime() - begun;
            }
        }
        return records + " " + Latencies.line(List.of(polls), elapsed);
    }
}
