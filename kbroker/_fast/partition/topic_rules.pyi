class TopicRules:
    max_message_bytes: int
    max_decompressed_message_bytes: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    compacted: bool
    log_append_time: bool
    internal: bool
    delete_enabled: bool
    codec: int
    codec_level: int | None
    segment_bytes: int
    def __init__(
        self,
        *,
        max_message_bytes: int = 1048588,
        max_decompressed_message_bytes: int = ...,
        timestamp_before_max_ms: int = ...,
        timestamp_after_max_ms: int = 3600000,
        compacted: bool = False,
        log_append_time: bool = False,
        internal: bool = False,
        delete_enabled: bool = True,
        codec: int = -1,
        codec_level: int | None = None,
        segment_bytes: int = ...,
    ) -> None: ...
