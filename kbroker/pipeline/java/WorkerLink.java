package kbroker.spark;

import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.SecureRandom;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;

/** A connection with the worker of one task, which learns port and secret from the task itself. */
final class WorkerLink {
    private static final byte[] BLANK = "kbroker reader at 00000 00000000000000000000000000000000".getBytes();
    private static final String FORMAT = "kbroker reader at %05d %s";
    private static final int SECRET_BYTES = 16;
    private static final int SECRET_MILLIS = 10000;

    private final ServerSocket server;
    private final byte[] address;
    private final byte[] secret;
    private Socket socket;
    private DataInputStream input;

    WorkerLink() throws IOException {
        server = new ServerSocket(0, 1, InetAddress.getByAddress(new byte[] {127, 0, 0, 1}));
        byte[] random = new byte[SECRET_BYTES];
        new SecureRandom().nextBytes(random);
        StringBuilder hex = new StringBuilder();
        for (int i = 0; i < random.length; i++) {
            hex.append(String.format("%02x", new Object[] {Byte.valueOf(random[i])}));
        }
        secret = hex.toString().getBytes(StandardCharsets.US_ASCII);
        Object[] found = new Object[] {Integer.valueOf(server.getLocalPort()), hex.toString()};
        address = String.format(FORMAT, found).getBytes(StandardCharsets.US_ASCII);
    }

    /** The task with the address in it: its pickle has a string of that length. */
    InputPartition addressed(InputPartition partition) {
        if (partition instanceof PythonStreamingInputPartition) {
            PythonStreamingInputPartition task = (PythonStreamingInputPartition) partition;
            return new PythonStreamingInputPartition(task.index(), filled(task.pickedPartition()), task.blockId());
        }
        PythonInputPartition task = (PythonInputPartition) partition;
        return new PythonInputPartition(task.index(), filled(task.pickedPartition()));
    }

    private byte[] filled(byte[] pickled) {
        byte[] found = (byte[]) pickled.clone();
        int last = found.length - BLANK.length;
        for (int at = 0; at <= last; at++) {
            if (isBlank(found, at)) {
                System.arraycopy(address, 0, found, at, address.length);
                break;
            }
        }
        return found;
    }

    private static boolean isBlank(byte[] bytes, int at) {
        for (int i = 0; i < BLANK.length; i++) {
            if (bytes[at + i] != BLANK[i]) {
                return false;
            }
        }
        return true;
    }

    /** Fills `bytes`, from the first connection that knows the secret. Throws SocketException after `refuse`. */
    void read(byte[] bytes) throws IOException {
        while (socket == null) {
            accept();
        }
        input.readFully(bytes);
    }

    private void accept() throws IOException {
        Socket found = server.accept();
        found.setTcpNoDelay(true);
        found.setSoTimeout(SECRET_MILLIS);
        byte[] said = new byte[secret.length];
        DataInputStream reading = new DataInputStream(found.getInputStream());
        try {
            reading.readFully(said);
        } catch (IOException silent) {
            said = new byte[0];
        }
        if (!MessageDigest.isEqual(said, secret)) {
            found.close();
            return;
        }
        found.setSoTimeout(0);
        input = reading;
        socket = found;
    }

    void write(int value) throws IOException {
        socket.getOutputStream().write(value);
    }

    /** Takes no connection any more; the one that is there stays. */
    void refuse() {
        try {
            server.close();
        } catch (IOException error) {
            /* nothing waits for it */
        }
    }

    void close() throws IOException {
        refuse();
        if (socket != null) {
            socket.close();
        }
    }
}
