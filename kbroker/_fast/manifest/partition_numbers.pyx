"""The compiled bases of the classes in storage.manifest.partition_state; see the .pxd."""


cdef class RowArrays:
    pass


cdef class PartitionNumbers:
    pass
