// Scenarios by their sentences: each prints "PASS<tab>sentence" or "FAIL<tab>sentence<tab>why".

import java.util.Arrays;
import java.util.Map;

final class Scenarios {
    interface Scenario {
        void run() throws Exception;
    }

    /** Returns how many failed. */
    static int run(Map<String, Scenario> scenarios) {
        int failures = 0;
        for (Map.Entry<String, Scenario> scenario : scenarios.entrySet()) {
            try {
                scenario.getValue().run();
                System.out.println("PASS\t" + scenario.getKey());
            } catch (Throwable error) {
                failures++;
                StackTraceElement here = Arrays.stream(error.getStackTrace())
                    .filter(frame -> !frame.getClassName().contains("."))
                    .findFirst().orElse(null);
                String why = (error + " at " + here).replaceAll("\\s+", " ");
                System.out.println("FAIL\t" + scenario.getKey() + "\t" + why);
            }
            System.out.flush();
        }
        return failures;
    }
}
