// SPDX-License-Identifier: Apache-2.0 OR MIT
// Runs RocksJava's own tests and prints one line for each: its name and `passed`, `ignored` or `failed`.
// Why a test failed is on standard error.
//
//   OwnTests CLASS...
import org.junit.runner.*;
import org.junit.runner.notification.*;

public class OwnTests {
  public static void main(String[] arguments) throws Exception {
    JUnitCore core = new JUnitCore();
    core.addListener(new RunListener() {
      private String result;

      @Override
      public void testStarted(Description test) {
        result = "passed";
      }

      @Override
      public void testFailure(Failure failure) {
        result = "failed";
        System.err.println(name(failure.getDescription()) + ": " + failure.getTrace());
        // A class that cannot be set up has no tests.
        if (!failure.getDescription().isTest()) testFinished(failure.getDescription());
      }

      @Override
      public void testAssumptionFailure(Failure failure) {
        result = "ignored";
      }

      @Override
      public void testFinished(Description test) {
        System.out.println("test " + name(test) + " " + result);
      }

      @Override
      public void testIgnored(Description test) {
        System.out.println("test " + name(test) + " ignored");
      }

      private String name(Description test) {
        return test.getClassName().replaceFirst(".*[.]", "") + "." + test.getMethodName();
      }
    });
    for (String each : arguments) core.run(Class.forName(each));
    // Threads of a test that hang do not count.
    System.exit(0);
  }
}
