"""The GPU worker's data path on a GPU: link, latency, throughput, cache, against the paper and against plain PyG."""
