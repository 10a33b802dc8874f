import io.lettuce.core.KeyScanArgs;
import io.lettuce.core.LettuceFutures;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanIterator;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Supplier;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.resps.ScanResult;

/** jedis or lettuce against a gateway: `RespClient jedis|lettuce PORT RESTART`. */
public class RespClient {
    static void want(boolean is, String what) {
        if (!is) throw new IllegalStateException("wrong: " + what);
    }

    static String key(int number) {
        return String.format("key:%05d", number);
    }

    static byte[] bytes(int length) {
        byte[] bytes = new byte[length];
        for (int at = 0; at < length; at++) bytes[at] = (byte) at;
        return bytes;
    }

    /** Kills the gateway, starts another, and reads again. */
    static void restart(String program, Supplier<String> get) throws Exception {
        want(new ProcessBuilder(program).inheritIO().start().waitFor() == 0, "restart");
        for (int attempt = 0; ; attempt++) {
            try {
                want("100".equals(get.get()), "after the restart");
                return;
            } catch (RuntimeException error) {
                if (attempt == 50) throw error;
                Thread.sleep(100);
            }
        }
    }

    static void jedis(int port, String program) throws Exception {
        try (var client = redis.clients.jedis.RedisClient.create("127.0.0.1", port)) {
            client.flushAll();
            client.set(bytes(128), bytes(256));
            want(Arrays.equals(client.get(bytes(128)), bytes(256)), "binary");
            want(client.incr("a") == 1 && client.get("none") == null, "INCR");
            try (var pipeline = client.pipelined()) {
                for (int number = 0; number < 10000; number++) {
                    pipeline.set(key(number), Integer.toString(number));
                }
                pipeline.sync();
            }
            List<String> found = new ArrayList<>();
            String cursor = ScanParams.SCAN_POINTER_START;
            do {
                ScanResult<String> page =
                    client.scan(cursor, new ScanParams().match("key:*").count(900));
                found.addAll(page.getResult());
                cursor = page.getCursor();
            } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
            want(found.size() == 10000 && found.get(77).equals(key(77)), "scan");
            restart(program, () -> client.get(key(100)));
        }
    }

    static void lettuce(int port, String program) throws Exception {
        RedisClient client = RedisClient.create(RedisURI.create("127.0.0.1", port));
        try (var connection = client.connect()) {
            var commands = connection.sync();
            commands.flushall();
            want(commands.incr("a") == 1 && commands.get("none") == null, "INCR");
            List<RedisFuture<String>> sent = new ArrayList<>();
            for (int number = 0; number < 10000; number++) {
                sent.add(connection.async().set(key(number), Integer.toString(number)));
            }
            var all = sent.toArray(new RedisFuture[0]);
            want(LettuceFutures.awaitAll(Duration.ofSeconds(60), all), "pipeline");
            int found = 0;
            var keys = ScanIterator.scan(commands, KeyScanArgs.Builder.matches("key:*").limit(900));
            while (keys.hasNext()) want(keys.next().equals(key(found++)), "scan");
            want(found == 10000, "scan: " + found);
            restart(program, () -> commands.get(key(100)));
        }
        client.shutdown();
    }

    public static void main(String[] words) throws Exception {
        if (words[0].equals("jedis")) jedis(Integer.parseInt(words[1]), words[2]);
        else lettuce(Integer.parseInt(words[1]), words[2]);
    }
}
