"""Pure: what a client can be; `workload.JOBS` has the code of each."""

JOBS = (
    "send",
    "read",
    "pull",
    "push",
    "ordered",
    "topics",
    "post",
    "operate",
    "hasty",
    "rescue",
    "ways",
    "request",
    "pop",
    "delay",
    "transact",
    "inorder",
    "move",
    "broadcast",
    "alter",
    "remap",
)
