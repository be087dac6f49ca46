"""Text in, Fabric out: one source format a file. Reading files is the caller's business."""
