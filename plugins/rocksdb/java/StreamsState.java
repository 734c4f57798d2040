// SPDX-License-Identifier: Apache-2.0 OR MIT
// Looks into the databases that a killed program of StreamsTest left behind, before it is started again.
//
//   StreamsState check BROKER DIRECTORY PROGRAM...
//       for each task: each value is one that the topic has for the key, whole, and none is older than
//       `.checkpoint` says. `.checkpoint` is not beyond the changelog. Prints a line for each task
//   StreamsState mark DIRECTORY PROGRAM/TASK...
//       puts a key into databases of tasks that no topic has. Where it shows in a program's table, the
//       database had not been removed
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.TopicPartition;
import org.rocksdb.*;

public class StreamsState {
  static final String FAMILY = "keyValueWithTimestamp";
  static final int TIMESTAMP = 8;
  static final String MARK = "marked";

  public static void main(String[] arguments) throws Exception {
    RocksDB.loadLibrary();
    switch (arguments[0]) {
      case "check": {
        Topic topic = new Topic(arguments[1], StreamsTest.TOPIC);
        for (String program : Arrays.asList(arguments).subList(3, arguments.length)) {
          check(arguments[1], topic, arguments[2], program);
        }
        break;
      }
      case "mark":
        for (String task : Arrays.asList(arguments).subList(2, arguments.length)) {
          mark(arguments[1], task.split("/")[0], task.split("/")[1]);
        }
        break;
      default: throw new IllegalArgumentException(arguments[0]);
    }
  }

  // What a topic says of keys: offsets and the short forms of values, oldest first.
  static class Topic {
    final List<Map<String, TreeMap<Long, String>>> parts = new ArrayList<>();
    final Map<TopicPartition, Long> ends;

    Topic(String broker, String name) {
      for (int part = 0; part < StreamsTest.PARTITIONS; part++) parts.add(new HashMap<>());
      ends = StreamsTest.records(broker, name, record ->
          parts.get(record.partition()).computeIfAbsent(record.key(), key -> new TreeMap<>())
              .put(record.offset(), shortened(record.value())));
    }

    TreeMap<Long, String> of(int part, String key) {
      return parts.get(part).getOrDefault(key, new TreeMap<>());
    }
  }

  // A value's first part, SEED:NUMBER, and its length. A removed key has the value "".
  static String shortened(String value) {
    if (value == null) return "";
    int filled = value.lastIndexOf(':') + 1;
    boolean whole = filled > 0 && value.chars().skip(filled).allMatch(each -> each == 'x');
    return whole ? value.substring(0, filled) + (value.length() - filled) : "torn: " + value;
  }

  static Path task(String directory, String program, String task) {
    return Path.of(directory, "streams-" + program, task);
  }

  static String database(String directory, String program, String task) {
    return task(directory, program, task) + "/rocksdb/" + StreamsTest.TABLE;
  }

  interface Use {
    void of(RocksDB db, ColumnFamilyHandle table) throws RocksDBException;
  }

  // Returns whether there is a database with a table.
  static boolean open(String path, boolean change, Use use) throws RocksDBException {
    List<ColumnFamilyDescriptor> families = new ArrayList<>();
    List<ColumnFamilyHandle> handles = new ArrayList<>();
    try (Options options = new Options()) {
      for (byte[] name : RocksDB.listColumnFamilies(options, path)) {
        families.add(new ColumnFamilyDescriptor(name));
      }
    } catch (RocksDBException error) {
      if (!isMissing(error)) throw error;
    }
    if (families.size() != 2) return false;
    try (DBOptions options = new DBOptions();
        RocksDB db = change ? RocksDB.open(options, path, families, handles)
            : RocksDB.openReadOnly(options, path, families, handles)) {
      for (ColumnFamilyHandle handle : handles) {
        if (new String(handle.getName()).equals(FAMILY)) use.of(db, handle);
      }
      handles.forEach(ColumnFamilyHandle::close);
    } catch (RocksDBException error) {
      // Its directory is gone from the host.
      if (!isMissing(error)) throw error;
      return false;
    }
    return true;
  }

  // A program that was killed early has made no database yet.
  static boolean isMissing(RocksDBException error) {
    Status status = error.getStatus();
    boolean notFound = status != null && status.getCode() == Status.Code.NotFound;
    return notFound || error.getMessage().contains("does not exist")
        || error.getMessage().contains("No such file");
  }

  // What a task's file .checkpoint says of its table's changelog; -1 if it says nothing.
  static long checkpoint(String directory, String program, String task) throws Exception {
    Path file = task(directory, program, task).resolve(".checkpoint");
    if (!Files.exists(file)) return -1;
    for (String line : Files.readAllLines(file)) {
      String[] words = line.split(" ");
      if (words.length == 3) return Long.parseLong(words[2]);
    }
    return -1;
  }

  static void check(String broker, Topic topic, String directory, String program) throws Exception {
    String name = "streams-" + program + "-" + StreamsTest.TABLE + "-changelog";
    Topic changelog = new Topic(broker, name);
    Map<TopicPartition, Long> processed = new HashMap<>();
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", broker))) {
      admin.listConsumerGroupOffsets("streams-" + program).partitionsToOffsetAndMetadata().get()
          .forEach((part, at) -> processed.put(part, at.offset()));
    }
    for (int part = 0; part < StreamsTest.PARTITIONS; part++) {
      String task = "0_" + part;
      long at = checkpoint(directory, program, task);
      long end = changelog.ends.get(new TopicPartition(name, part));
      // It names the last record that is in the table.
      if (at >= end && at > 0) throw new AssertionError(task + ": .checkpoint " + at + " of " + end);
      Map<String, String> found = new HashMap<>();
      boolean there = open(database(directory, program, task), false, (db, table) -> {
        try (RocksIterator each = db.newIterator(table)) {
          for (each.seekToFirst(); each.isValid(); each.next()) {
            byte[] value = each.value();
            found.put(new String(each.key(), StandardCharsets.UTF_8), shortened(new String(value,
                TIMESTAMP, value.length - TIMESTAMP, StandardCharsets.UTF_8)));
          }
          each.status();
        }
      });
      long next = processed.getOrDefault(new TopicPartition(StreamsTest.TOPIC, part), 0L);
      Set<String> keys = new TreeSet<>(topic.parts.get(part).keySet());
      keys.addAll(found.keySet());
      // A database with it may be about to be removed: tables that are compared later must not have it.
      keys.remove(MARK);
      int newer = 0;
      for (String key : keys) {
        String value = found.getOrDefault(key, "");
        TreeMap<Long, String> logged = changelog.of(part, key);
        Map.Entry<Long, String> known = logged.floorEntry(at);
        boolean current = value.equals(known == null ? "" : known.getValue());
        // A record that was processed, but not committed, may be in the table alone.
        boolean good = current || logged.tailMap(at, false).containsValue(value)
            || topic.of(part, key).tailMap(next, true).containsValue(value);
        if (!good) {
          throw new AssertionError(program + " " + task + ": " + key + ": '" + value
              + "', in the changelog up to " + at + ": " + known + ", then "
              + logged.tailMap(at, false));
        }
        if (!current) newer++;
      }
      System.out.println(program + " " + task + ": " + (there ? found.size() + " keys" : "none")
          + ", checkpoint " + (at < 0 ? "none" : at + " of " + end) + ", " + newer + " newer");
    }
  }

  static void mark(String directory, String program, String task) throws RocksDBException {
    boolean there = open(database(directory, program, task), true, (db, table) -> {
      byte[] value = new byte[TIMESTAMP + 1];
      value[TIMESTAMP] = 'x';
      try (WriteOptions synced = new WriteOptions().setSync(true)) {
        db.put(table, synced, MARK.getBytes(), value);
      }
    });
    System.out.println(program + " " + task + ": " + (there ? "marked" : "none"));
  }
}
