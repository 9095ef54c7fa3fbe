"""Which GPUs form workers, with which parallelism, in which role, and where KV flows. Pure, and run offline.

`inventory` says what there is, `parallelism` which workers it can hold and what each carries, `search` finds a
placement on unequal GPUs (HexGen-2, ICLR 2025) and `homogeneous` one on equal GPUs (DistServe, arXiv 2401.09670).
How well workers keep a promise is a function that the caller hands in (`performance.Performance`).
"""
