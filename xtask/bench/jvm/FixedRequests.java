import com.sun.net.httpserver.HttpServer;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** A fixed number of HTTP requests of four clients to a server in the same JVM, on loopback. */
public class FixedRequests {
    static byte[] answer(String query) {
        TreeMap<String, Integer> words = new TreeMap<>();
        for (int i = 0; i < 200; i++) words.merge(query + i % 37, i, Integer::sum);
        return words.toString().getBytes(StandardCharsets.UTF_8);
    }

    public static void main(String[] args) throws Exception {
        int requests = Integer.parseInt(args[0]);
        // Else each answer waits 40 ms for the client's delayed acknowledgement.
        System.setProperty("sun.net.httpserver.nodelay", "true");
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        ExecutorService workers = Executors.newFixedThreadPool(4);
        server.setExecutor(workers);
        server.createContext("/", exchange -> {
            byte[] body = answer(exchange.getRequestURI().getQuery());
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
        Thread[] clients = new Thread[4];
        for (int c = 0; c < clients.length; c++) {
            clients[c] = new Thread(() -> {
                byte[] buffer = new byte[16_384];
                try {
                    for (int i = 0; i < requests / clients.length; i++) {
                        URL url = new URL("http", "127.0.0.1", server.getAddress().getPort(), "/?word" + i);
                        HttpURLConnection connection = (HttpURLConnection) url.openConnection();
                        try (InputStream body = connection.getInputStream()) {
                            while (body.read(buffer) > 0) { }
                        }
                    }
                } catch (Exception e) {
                    e.printStackTrace();
                    System.exit(1);
                }
            });
            clients[c].start();
        }
        for (Thread client : clients) client.join();
        server.stop(0);
        workers.shutdown();
    }
}
