package kbroker.spark;

import java.io.EOFException;
import java.io.IOException;
import java.net.SocketException;
import java.nio.ByteBuffer;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;

/**
 * The batches of one task. Its worker writes each of them into shared memory and says where; a byte in answer says that
 * it has been used, or that this process may not open the memory and needs the bytes. Spark's own stream from the worker
 * brings no rows, only its end or its error.
 */
final class SharedReader implements PartitionReader, Runnable {
    private static final int PLACE_BYTES = 24;  /* process, its file, start and length */
    private static final int SENT = -1;  /* in place of a file: the bytes follow */
    private static final int USED = 1;  /* answers */
    private static final int SEND = 2;

    private final WorkerLink link;
    private final PartitionReader python;
    private final SharedBatches batches;
    private final Thread worker = new Thread(this, "kbroker-worker");
    private volatile Throwable failure;
    private IOException unopened;  /* why the worker was asked for bytes, until it sends them */
    private boolean used;

    SharedReader(PartitionReaderFactory factory, InputPartition partition, StructType schema) throws IOException {
        link = new WorkerLink();
        python = factory.createReader(link.addressed(partition));
        batches = new SharedBatches(schema);
        worker.setDaemon(true);
        worker.start();
    }

    /** Follows Spark's stream up to its end. */
    @Override
    public void run() {
        try {
            if (python.next()) {
                throw new IllegalStateException("the Python worker sends rows, where it should share its memory");
            }
        } catch (Throwable error) {
            failure = error;
        }
        link.refuse();
    }

    @Override
    public boolean next() throws IOException {
        batches.drop();
        try {
            if (used) {
                link.write(USED);
            }
            byte[] place = new byte[PLACE_BYTES];
            do {
                link.read(place);
            } while (!isLoaded(ByteBuffer.wrap(place)));
        } catch (EOFException ended) {
            return end();
        } catch (SocketException ended) {
            return end();
        }
        used = true;
        return true;
    }

    /** Loads the batch of a place. If its memory cannot be opened, asks for the bytes and passes over the place. */
    private boolean isLoaded(ByteBuffer place) throws IOException {
        int process = place.getInt();
        int file = place.getInt();
        long start = place.getLong();
        long length = place.getLong();
        if (file == SENT) {
            byte[] message = new byte[(int) length];
            link.read(message);
            batches.load(message);
            unopened = null;
            return true;
        }
        if (unopened != null) {
            return false;
        }
        try {
            batches.load(process, file, start, length);
            return true;
        } catch (IOException error) {
            unopened = error;
            link.write(SEND);
            return false;
        }
    }

    private boolean end() throws IOException {
        try {
            worker.join();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new IOException(interrupted);
        }
        if (failure != null) {
            Platform.throwException(failure);
        }
        if (unopened != null) {
            throw unopened;  /* and the worker has not sent the bytes */
        }
        return false;
    }

    @Override
    public Object get() {
        return batches.columns();
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        return python.currentMetricsValues();
    }

    @Override
    public void close() throws IOException {
        batches.close();
        link.close();
        python.close();
    }
}
