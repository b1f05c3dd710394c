import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * RocketMQ's mqadmin for many commands: a line of stdin is one, its arguments separated by tabs.
 * The line with the character 0x1E alone ends what a command printed.
 */
public final class Mqadmin {
    private Mqadmin() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setErr(System.out);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            MQAdminStartup.main0(line.split("\t", -1), null);
            System.out.println("\n\u001e");
            System.out.flush();
        }
        System.exit(0);
    }
}
