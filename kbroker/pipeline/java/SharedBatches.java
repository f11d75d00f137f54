package kbroker.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.List;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.ForeignAllocation;
import org.apache.arrow.memory.util.MemoryUtil;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.storage.StorageUtils;

/** Arrow batches in a worker's memory, mapped into this process: no byte of them is copied. */
final class SharedBatches {
    private static final int PREFIX_BYTES = 8;  /* of Arrow's encapsulated messages: a mark and the metadata's length */

    private final BufferAllocator allocator =
        ArrowUtils.rootAllocator().newChildAllocator("kbroker", 0, Long.MAX_VALUE);
    private final VectorSchemaRoot root;
    private final VectorLoader loader;
    private final ColumnarBatch columns;
    private MappedByteBuffer mapped;
    private ArrowBuf memory;

    SharedBatches(StructType schema) {
        root = VectorSchemaRoot.create(ArrowUtils.toArrowSchema(schema, "UTC", true, false), allocator);
        loader = new VectorLoader(root);
        List vectors = root.getFieldVectors();
        ColumnVector[] readable = new ColumnVector[vectors.size()];
        for (int i = 0; i < readable.length; i++) {
            readable[i] = new ArrowColumnVector((FieldVector) vectors.get(i));
        }
        columns = new ColumnarBatch(readable);
    }

    /** The rows of the last batch loaded, until it is dropped. */
    ColumnarBatch columns() {
        return columns;
    }

    void drop() {
        root.clear();
    }

    /** Loads the message that a process has at this place in a file it has open. */
    void load(int process, int file, long start, long length) throws IOException {
        if (memory == null || start + length > memory.capacity()) {
            map("/proc/" + process + "/fd/" + file);
        }
        memory.getReferenceManager().retain();
        load(mapped.duplicate(), memory, (int) start, start + length);
    }

    /** Loads a copy of a message. */
    void load(byte[] message) throws IOException {
        ArrowBuf copy = allocator.buffer(message.length);
        copy.setBytes(0L, message);
        load(ByteBuffer.wrap(message), copy, 0, message.length);
    }

    /** Takes a reference to `owner` over, in which `bytes` are. */
    private void load(ByteBuffer bytes, ArrowBuf owner, int start, long end) throws IOException {
        ByteBuffer message = bytes.order(ByteOrder.LITTLE_ENDIAN);
        int metadata = start + PREFIX_BYTES;
        int body = metadata + message.getInt(metadata - 4);
        message.limit(body).position(metadata);
        RecordBatch header = (RecordBatch) Message.getRootAsMessage((ByteBuffer) message.slice())
            .header(new RecordBatch());
        ArrowRecordBatch batch = MessageSerializer.deserializeRecordBatch(header, owner.slice(body, end - body));
        try {
            loader.load(batch);
        } finally {
            batch.close();
        }
        columns.setNumRows(root.getRowCount());
    }

    private void map(String path) throws IOException {
        unmap();
        FileChannel file = FileChannel.open(Paths.get(path), new OpenOption[] {StandardOpenOption.READ});
        try {
            mapped = file.map(FileChannel.MapMode.READ_ONLY, 0, file.size());
        } finally {
            file.close();
        }
        memory = allocator.wrapForeignAllocation(new Mapping(mapped));
    }

    private void unmap() {
        if (memory != null) {
            memory.close();
            memory = null;
        }
    }

    void close() {
        root.close();
        unmap();
        allocator.close();
    }

    /** Unmapped as soon as no buffer refers to it, not when the garbage collector finds it. */
    private static final class Mapping extends ForeignAllocation {
        private final MappedByteBuffer mapped;

        Mapping(MappedByteBuffer mapped) {
            super(mapped.capacity(), MemoryUtil.getByteBufferAddress(mapped));
            this.mapped = mapped;
        }

        @Override
        protected void release0() {
            StorageUtils.dispose(mapped);
        }
    }
}
