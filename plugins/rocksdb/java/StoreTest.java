// SPDX-License-Identifier: Apache-2.0 OR MIT
// RocksDB for Java on a store, unmodified: each kind of database, and each way in which a virtual
// machine ends. scripts/rocksdb-jni.sh runs it under furrow run.
//
//   StoreTest use PATH              what programs do with databases, at PATH
//   StoreTest put PATH FROM         puts numbers from FROM on, each synced, and prints them, for ever
//   StoreTest verify PATH NUMBER    all numbers below NUMBER are there
//   StoreTest end HOW PATH NUMBER   200 threads put numbers below NUMBER, unsynced, then it ends by
//                                   exit, halt, return, fork or unclosed
//   StoreTest bench PATH VALUE KEYS [direct]
//                                   fills a database with KEYS values of VALUE bytes, reads and replaces
//                                   KEYS of them at random; prints operations a second. direct: with
//                                   direct reads, so that the kernel's page cache holds nothing

import java.io.File;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.rocksdb.*;

public class StoreTest {
  static final byte[] FAMILY = "other".getBytes();

  public static void main(String[] arguments) throws Exception {
    RocksDB.loadLibrary();
    switch (arguments[0]) {
      case "use": use(arguments[1]); break;
      case "put": put(arguments[1], Integer.parseInt(arguments[2])); break;
      case "verify": verify(arguments[1], Integer.parseInt(arguments[2])); break;
      case "end": end(arguments[1], arguments[2], Integer.parseInt(arguments[3])); break;
      case "bench":
        bench(arguments[1], Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]),
            arguments.length > 4);
        break;
      default: throw new IllegalArgumentException(arguments[0]);
    }
  }

  static byte[] key(int number) {
    return ByteBuffer.allocate(4).putInt(number).array();
  }

  static byte[] value(int number) {
    byte[] value = new byte[100 + number % 5000];
    Arrays.fill(value, (byte) number);
    return value;
  }

  static void check(boolean holds, String what) {
    if (!holds) throw new AssertionError(what);
  }

  static void checkValue(RocksDB db, int number) throws RocksDBException {
    check(Arrays.equals(db.get(key(number)), value(number)), "number " + number);
  }

  static Options options() {
    return new Options()
        .setCreateIfMissing(true)
        .setWriteBufferSize(1 << 20)
        .setEnableBlobFiles(true)
        .setMinBlobSize(1024)
        .setEnableBlobGarbageCollection(true);
  }

  static void use(String path) throws Exception {
    families(path + "/families");
    // BackupEngineOptions wants a directory of the host, and RocksDB then writes to the store.
    Path backup = Files.createTempDirectory("backup");
    copies(path + "/copies", path + "/checkpoint", backup.toString(), path + "/restored");
    Files.delete(backup);
    transactions(path + "/pessimistic", path + "/optimistic");
    others(path + "/ttl", path + "/destroyed");
    check(!new File(path).exists(), path + " is on the host");
    System.out.println("used");
  }

  // Column families, an options file, statistics, iterators, ranges, merges; closed and reopened.
  static void families(String path) throws Exception {
    List<ColumnFamilyDescriptor> described =
        Arrays.asList(
            new ColumnFamilyDescriptor(RocksDB.DEFAULT_COLUMN_FAMILY),
            new ColumnFamilyDescriptor(
                FAMILY,
                new ColumnFamilyOptions()
                    .setMergeOperator(new StringAppendOperator(','))
                    .setEnableBlobFiles(true)));
    List<ColumnFamilyHandle> handles = new ArrayList<>();
    try (Statistics statistics = new Statistics();
        DBOptions options =
            new DBOptions()
                .setCreateIfMissing(true)
                .setCreateMissingColumnFamilies(true)
                .setStatistics(statistics);
        RocksDB db = RocksDB.open(options, path, described, handles)) {
      try (WriteOptions write = new WriteOptions();
          WriteBatch batch = new WriteBatch()) {
        for (int number = 0; number < 3000; number++) {
          batch.put(handles.get(0), key(number), value(number));
          batch.merge(handles.get(1), key(number % 10), ("" + number).getBytes());
        }
        batch.deleteRange(handles.get(0), key(1000), key(2000));
        db.write(write, batch);
      }
      try (FlushOptions flush = new FlushOptions().setWaitForFlush(true)) {
        db.flush(flush, handles);
      }
      db.compactRange(handles.get(0));
      check(statistics.getTickerCount(TickerType.BYTES_WRITTEN) > 3000 * 100, "statistics");
      check(db.getProperty("rocksdb.stats").contains("Level"), "the property rocksdb.stats");
      handles.forEach(ColumnFamilyHandle::close);
    }
    handles.clear();
    try (Options options = new Options()) {
      List<byte[]> found = RocksDB.listColumnFamilies(options, path);
      check(found.size() == 2 && Arrays.equals(found.get(1), FAMILY), "families by name");
    }
    DBOptions saved = new DBOptions();
    List<ColumnFamilyDescriptor> loaded = new ArrayList<>();
    try (ConfigOptions config = new ConfigOptions()) {
      OptionsUtil.loadLatestOptions(config, path, saved, loaded);
    }
    check(loaded.size() == 2, "families in the options file");
    loaded.get(1).getOptions().setMergeOperator(new StringAppendOperator(','));
    try (RocksDB db = RocksDB.open(saved, path, loaded, handles)) {
      int count = 0;
      try (ReadOptions read = new ReadOptions().setReadaheadSize(1 << 16);
          RocksIterator each = db.newIterator(handles.get(0), read)) {
        for (each.seekToFirst(); each.isValid(); each.next(), count++) {
          int number = ByteBuffer.wrap(each.key()).getInt();
          check(number < 1000 || number >= 2000, "a deleted number");
          check(Arrays.equals(each.value(), value(number)), "number " + number);
        }
        each.status();
        for (each.seekToLast(); each.isValid(); each.prev()) count--;
      }
      check(count == 0, "as many backwards");
      String merged = new String(db.get(handles.get(1), key(7)));
      check(merged.startsWith("7,17,27,") && merged.endsWith(",2997"), merged);
      List<byte[]> many = db.multiGetAsList(Arrays.asList(handles.get(0), handles.get(0)),
          Arrays.asList(key(5), key(1500)));
      check(Arrays.equals(many.get(0), value(5)) && many.get(1) == null, "several at once");
      db.dropColumnFamily(handles.get(1));
      handles.forEach(ColumnFamilyHandle::close);
    }
    saved.close();
    try (Options options = new Options(); RocksDB db = RocksDB.openReadOnly(options, path)) {
      checkValue(db, 2999);
    }
  }

  // Checkpoints, backups and external tables.
  static void copies(String path, String checkpoint, String backup, String restored)
      throws Exception {
    try (Options options = options(); RocksDB db = RocksDB.open(options, path)) {
      for (int number = 0; number < 2000; number++) db.put(key(number), value(number));
      try (Checkpoint made = Checkpoint.create(db)) {
        made.createCheckpoint(checkpoint);
      }
      try (BackupEngineOptions asked = new BackupEngineOptions(backup);
          BackupEngine engine = BackupEngine.open(Env.getDefault(), asked)) {
        engine.createNewBackup(db, true);
        db.put(key(2000), value(2000));
        engine.createNewBackup(db, true);
        check(engine.getBackupInfo().size() == 2, "two backups");
        engine.purgeOldBackups(1);
      }
    }
    try (BackupEngineOptions asked = new BackupEngineOptions(backup);
        BackupEngine engine = BackupEngine.open(Env.getDefault(), asked);
        RestoreOptions keep = new RestoreOptions(false)) {
      engine.restoreDbFromLatestBackup(restored, restored, keep);
    }
    try (Options options = options();
        RocksDB db = RocksDB.open(options, checkpoint);
        RocksDB second = RocksDB.open(options, restored)) {
      for (int number = 0; number < 2000; number++) {
        checkValue(db, number);
        checkValue(second, number);
      }
      check(db.get(key(2000)) == null, "the checkpoint is older");
      checkValue(second, 2000);
    }
    String table = path + "/table.sst";
    try (Options options = options();
        EnvOptions env = new EnvOptions();
        SstFileWriter writer = new SstFileWriter(env, options)) {
      writer.open(table);
      for (int number = 5000; number < 5100; number++) writer.put(key(number), value(number));
      writer.finish();
    }
    try (Options options = options();
        IngestExternalFileOptions ingest = new IngestExternalFileOptions().setMoveFiles(true);
        RocksDB db = RocksDB.open(options, path)) {
      db.ingestExternalFile(Arrays.asList(table), ingest);
      checkValue(db, 5099);
    }
  }

  static void transactions(String pessimistic, String optimistic) throws Exception {
    try (Options options = options();
        TransactionDBOptions of = new TransactionDBOptions();
        WriteOptions write = new WriteOptions().setSync(true)) {
      try (TransactionDB db = TransactionDB.open(options, of, pessimistic)) {
        try (Transaction one = db.beginTransaction(write)) {
          one.put(key(1), value(1));
          one.commit();
        }
        try (Transaction one = db.beginTransaction(write)) {
          one.put(key(1), value(2));
          one.rollback();
        }
        checkValue(db, 1);
      }
      try (TransactionDB db = TransactionDB.open(options, of, pessimistic)) {
        checkValue(db, 1);
      }
      try (OptimisticTransactionDB db = OptimisticTransactionDB.open(options, optimistic);
          Transaction one = db.beginTransaction(write);
          Transaction other = db.beginTransaction(write)) {
        one.put(key(1), value(1));
        other.put(key(1), value(2));
        one.commit();
        boolean refused = false;
        try {
          other.commit();
        } catch (RocksDBException error) {
          refused = error.getStatus().getCode() == Status.Code.Busy;
        }
        check(refused, "of two transactions on one key, both committed");
        checkValue(db, 1);
      }
    }
  }

  static void others(String ttl, String destroyed) throws Exception {
    try (Options options = options()) {
      try (TtlDB db = TtlDB.open(options, ttl, 3600, false)) {
        db.put(key(1), value(1));
        checkValue(db, 1);
      }
      try (RocksDB db = RocksDB.open(options, destroyed)) {
        db.put(key(1), value(1));
        boolean locked = false;
        try (RocksDB again = RocksDB.open(options, destroyed)) {
          again.put(key(2), value(2));
        } catch (RocksDBException error) {
          locked = true;
        }
        check(locked, "a database was opened twice");
      }
      RocksDB.destroyDB(destroyed, options);
      boolean gone = false;
      try (Options found = new Options().setCreateIfMissing(false);
          RocksDB db = RocksDB.open(found, destroyed)) {
        db.put(key(1), value(1));
      } catch (RocksDBException error) {
        gone = true;
      }
      check(gone, "a destroyed database is there");
    }
  }

  static void put(String path, int from) throws Exception {
    try (Options options = options();
        RocksDB db = RocksDB.open(options, path);
        WriteOptions synced = new WriteOptions().setSync(true)) {
      for (int number = from;; number++) {
        db.put(synced, key(number), value(number));
        System.out.println(number);
      }
    }
  }

  static void verify(String path, int most) throws Exception {
    try (Options options = options(); RocksDB db = RocksDB.open(options, path)) {
      for (int number = 0; number < most; number++) checkValue(db, number);
    }
    System.out.println("whole");
  }

  interface Step {
    void at(int number) throws RocksDBException;
  }

  // Writes are timed until they are durable: to the end of a flush.
  static void timed(String name, int count, RocksDB db, boolean writes, Step step)
      throws RocksDBException {
    long begun = System.nanoTime();
    for (int number = 0; number < count; number++) step.at(number);
    if (writes) {
      try (FlushOptions flush = new FlushOptions().setWaitForFlush(true)) {
        db.flush(flush);
      }
    }
    System.out.printf("%s %.0f%n", name, count * 1e9 / (System.nanoTime() - begun));
  }

  static void bench(String path, int length, int keys, boolean direct) throws Exception {
    Random random = new Random(7);
    // Values that cannot be compressed, each another part of this.
    byte[] source = new byte[length + (1 << 20)];
    random.nextBytes(source);
    byte[] value = new byte[length];
    try (Options options =
            options()
                .setWriteBufferSize(64 << 20)
                .setBlobFileSize(64 << 20)
                .setMinBlobSize(512)
                .setUseDirectReads(direct)
                .setCompressionType(CompressionType.NO_COMPRESSION);
        RocksDB db = RocksDB.open(options, path)) {
      Step put = number -> {
        System.arraycopy(source, random.nextInt(1 << 20), value, 0, length);
        db.put(key(number), value);
      };
      timed("fill", keys, db, true, put);
      timed("read", keys, db, false,
          number -> check(db.get(key(random.nextInt(keys)), value) == length, "a value is lost"));
      timed("overwrite", keys, db, true, number -> put.at(random.nextInt(keys)));
      timed("reread", keys, db, false,
          number -> check(db.get(key(random.nextInt(keys)), value) == length, "a value is lost"));
    }
  }

  static void end(String how, String path, int most) throws Exception {
    RocksDB db = RocksDB.open(options(), path);
    int count = 200;
    AtomicInteger next = new AtomicInteger();
    CountDownLatch done = new CountDownLatch(count);
    for (int thread = 0; thread < count; thread++) {
      Thread one =
          new Thread(
              () -> {
                try {
                  for (int number; (number = next.getAndIncrement()) < most; ) {
                    db.put(key(number), value(number));
                  }
                  done.countDown();
                  // Goes on while the virtual machine ends.
                  for (;;) db.get(key(0));
                } catch (RocksDBException error) {
                  throw new IllegalStateException(error);
                }
              });
      one.setDaemon(true);
      one.start();
    }
    done.await();
    switch (how) {
      case "exit": System.exit(0); break;
      case "halt": Runtime.getRuntime().halt(0); break;
      case "return": break;
      case "fork": {
        int status = new ProcessBuilder("/bin/sh", "-c", "exit 7").inheritIO().start().waitFor();
        check(status == 7, "a program that was started: " + status);
        break;
      }
      case "unclosed": {
        for (int round = 0; round < 20; round++) {
          RocksDB forgotten = RocksDB.open(options(), path + "/" + round);
          forgotten.put(key(round), value(round));
        }
        System.gc();
        break;
      }
      default: throw new IllegalArgumentException(how);
    }
  }
}
