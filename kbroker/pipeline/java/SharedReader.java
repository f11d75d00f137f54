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
 * it has been used. Spark's own stream from the worker brings no rows, only its end or its error.
 */
final class SharedReader implements PartitionReader, Runnable {
    private static final int PLACE_BYTES = 24;  /* process, its file, start and length */

    private final WorkerLink link;
    private final PartitionReader python;
    private final SharedBatches batches;
    private final Thread worker = new Thread(this, "kbroker-worker");
    private volatile Throwable failure;
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
        byte[] place = new byte[PLACE_BYTES];
        try {
            if (used) {
                link.write(1);
            }
            link.read(place);
        } catch (EOFException ended) {
            return end();
        } catch (SocketException ended) {
            return end();
        }
        ByteBuffer told = ByteBuffer.wrap(place);
        try {
            batches.load(told.getInt(), told.getInt(), told.getLong(), told.getLong());
        } catch (IOException unreadable) {
            link.close();
            end();  /* throws the worker's error, if it has died */
            throw unreadable;
        }
        used = true;
        return true;
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
