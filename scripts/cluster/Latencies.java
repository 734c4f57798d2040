// How long each operation of a load took: what the load programs of scripts/cluster collect and print.
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

class Latencies {
    private long[] nanoseconds = new long[1024];
    private int count;
    private long failed;
    private long bytes;

    interface Work {
        void run(Latencies mine) throws Exception;
    }

    synchronized void add(long latency, long length) {
        if (count == nanoseconds.length) nanoseconds = Arrays.copyOf(nanoseconds, 2 * count);
        nanoseconds[count++] = latency;
        bytes += length;
    }

    synchronized void fail() {
        failed++;
    }

    // Runs `work` in a number of threads; returns "COUNT FAILED BYTES MICROSECONDS P50 P99", the latencies in
    // microseconds, too.
    static String of(int threads, Work work) throws Exception {
        List<Latencies> each = new ArrayList<>();
        List<Thread> running = new ArrayList<>();
        long begun = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            Latencies mine = new Latencies();
            each.add(mine);
            Thread thread = new Thread(() -> {
                try {
                    work.run(mine);
                } catch (Exception e) {
                    e.printStackTrace();
                    mine.fail();
                }
            });
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) thread.join();
        return line(each, System.nanoTime() - begun);
    }

    static String line(List<Latencies> each, long elapsed) {
        int count = each.stream().mapToInt(l -> l.count).sum();
        long[] all = new long[count];
        int at = 0;
        for (Latencies l : each) {
            System.arraycopy(l.nanoseconds, 0, all, at, l.count);
            at += l.count;
        }
        Arrays.sort(all);
        return count + " " + each.stream().mapToLong(l -> l.failed).sum() + " "
                + each.stream().mapToLong(l -> l.bytes).sum() + " " + elapsed / 1000 + " "
                + percentile(all, 0.50) + " " + percentile(all, 0.99);
    }

    private static long percentile(long[] sorted, double share) {
        if (sorted.length == 0) return 0;
        return sorted[(int) Math.min(sorted.length - 1, (long) (share * sorted.length))] / 1000;
    }
}
