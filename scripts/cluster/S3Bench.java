// The load of scripts/cluster.sh bench for an S3 server: S3Bench BUCKET KEY SECRET PORT..., one port of the
// loopback for each node. Uses what Java has and no library: that of Python would cost more than the server.
// Commands on standard input, answers on standard output (COUNT and so on: see Latencies.java):
//
//     put PREFIX LENGTH SECONDS THREADS LIMIT    new objects, until the time or LIMIT bytes are over:
//                                                "put COUNT ..."
//     get PREFIX SECONDS THREADS                 these objects, each from the next node: "get COUNT ..."
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public class S3Bench {
    static final DateTimeFormatter TIME = DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'");
    static final String SIGNED = "host;x-amz-content-sha256;x-amz-date";
    static final String PAYLOAD = "UNSIGNED-PAYLOAD";
    static final HttpClient HTTP = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    static String bucket, key, secret;
    static String[] hosts;
    // Number of objects below each prefix.
    static final Map<String, Long> written = new ConcurrentHashMap<>();

    static byte[] hmac(byte[] with, String text) throws Exception {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(with, "HmacSHA256"));
        return mac.doFinal(text.getBytes());
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte b : bytes) text.append(String.format("%02x", b));
        return text.toString();
    }

    // One request, signed as AWS's version 4 wants it; the length of the answer.
    static int request(String method, int node, String name, byte[] body) throws Exception {
        String host = hosts[node % hosts.length], path = "/" + bucket + "/" + name;
        String time = ZonedDateTime.now(ZoneOffset.UTC).format(TIME), day = time.substring(0, 8);
        String scope = day + "/garage/s3/aws4_request";
        String canonical = method + "\n" + path + "\n\nhost:" + host + "\nx-amz-content-sha256:" + PAYLOAD
                + "\nx-amz-date:" + time + "\n\n" + SIGNED + "\n" + PAYLOAD;
        String digest = hex(MessageDigest.getInstance("SHA-256").digest(canonical.getBytes()));
        byte[] with = ("AWS4" + secret).getBytes();
        for (String part : scope.split("/")) with = hmac(with, part);
        String signature = hex(hmac(with, "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + digest));
        HttpRequest.BodyPublisher sent = body == null ? HttpRequest.BodyPublishers.noBody()
                : HttpRequest.BodyPublishers.ofByteArray(body);
        HttpRequest asked = HttpRequest.newBuilder(URI.create("http://" + host + path)).method(method, sent)
                .timeout(Duration.ofSeconds(60)).header("x-amz-date", time).header("x-amz-content-sha256", PAYLOAD)
                .header("Authorization", "AWS4-HMAC-SHA256 Credential=" + key + "/" + scope + ", SignedHeaders="
                        + SIGNED + ", Signature=" + signature).build();
        HttpResponse<byte[]> answer = HTTP.send(asked, HttpResponse.BodyHandlers.ofByteArray());
        if (answer.statusCode() != 200) {
            throw new IOException(method + " " + path + ": " + answer.statusCode() + " " + new String(answer.body()));
        }
        return answer.body().length;
    }

    interface One {
        boolean run(Latencies mine) throws Exception;
    }

    // Repeats an operation in some threads until it returns false or the time is over.
    static String repeat(int threads, int seconds, One one) throws Exception {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        return Latencies.of(threads, mine -> {
            while (System.nanoTime() < end) {
                try {
                    if (!one.run(mine)) return;
                } catch (IOException e) {
                    e.printStackTrace();
                    mine.fail();
                }
            }
        });
    }

    static String put(String prefix, int length, int seconds, int threads, long limit) throws Exception {
        byte[] random = new byte[length];
        new SplittableRandom(prefix.hashCode()).nextBytes(random);
        AtomicLong next = new AtomicLong();
        return repeat(threads, seconds, mine -> {
            long number = next.getAndIncrement();
            if (number * length >= limit) return false;
            // A store that knows blocks by their content must not have seen it.
            byte[] body = random.clone();
            ByteBuffer.wrap(body).putLong(number);
            long begun = System.nanoTime();
            request("PUT", (int) number, prefix + number, body);
            mine.add(System.nanoTime() - begun, length);
            written.merge(prefix, number + 1, Math::max);
            return true;
        });
    }

    static String get(String prefix, int seconds, int threads) throws Exception {
        long count = written.getOrDefault(prefix, 0L);
        AtomicLong next = new AtomicLong();
        return repeat(threads, seconds, mine -> {
            long number = next.getAndIncrement();
            // A stride that meets all in another order than that of writing, each time at another node.
            String name = prefix + Math.floorMod(number * 7919, count);
            long begun = System.nanoTime();
            int length = request("GET", (int) (number % hosts.length), name, null);
            mine.add(System.nanoTime() - begun, length);
            return true;
        });
    }

    public static void main(String[] arguments) throws Exception {
        bucket = arguments[0];
        key = arguments[1];
        secret = arguments[2];
        hosts = new String[arguments.length - 3];
        for (int i = 0; i < hosts.length; i++) hosts[i] = "127.0.0.1:" + arguments[i + 3];
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String[] w = line.split(" ");
            try {
                if (w[0].equals("put")) {
                    System.out.println("put " + put(w[1], Integer.parseInt(w[2]), Integer.parseInt(w[3]),
                            Integer.parseInt(w[4]), Long.parseLong(w[5])));
                } else {
                    System.out.println("get " + get(w[1], Integer.parseInt(w[2]), Integer.parseInt(w[3])));
                }
            } catch (Exception e) {
                System.out.println("error " + e.toString().replace('\n', ' '));
            }
        }
    }
}
