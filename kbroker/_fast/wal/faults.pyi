class Faults:
    write_after: int
    write_count: int
    write_errno: int
    torn_bytes: int
    short_bytes: int
    sync_after: int
    sync_count: int
    sync_errno: int
    sync_ns: int
    began_fd: int
    gate_fd: int
    prepare_count: int
    prepare_errno: int
    def prepare(self) -> None: ...
