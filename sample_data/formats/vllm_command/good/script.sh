#!/bin/bash
set -e
# the decode servers
export HF_TOKEN=hf_secret
VLLM_LOGGING_LEVEL=INFO nohup vllm serve meta-llama/Llama-3.1-8B-Instruct \
    -tp 4 -dp=2 -O3 \
    # more slots than before
    --max-num-seqs 64 --max_num_batched_tokens=8K --max-model-len 32k \
    --no-enable-prefix-caching --enforce-eager \
    --cudagraph-capture-sizes 1 2 4 \
    --served-model-name llama llama-8b --api-key sk-secret \
    --speculative-config.method ngram --speculative-config.num_speculative_tokens 3 \
    --kv-transfer-config '{
        "kv_connector": "NixlConnector",
        "kv_connector_extra_config": {"auth_token": "secret", "url": "https://user:secret@10.0.0.1/x"}
    }' --gpu-memory-utilization .9 --port 8000 > server.log 2>&1 &
sleep 5
