# SPDX-License-Identifier: Apache-2.0
"""One vLLM of vllm_restart.sh, and the comparison of two.

Usage: vllm_restart.py MODEL SOCKET RESULT [--gpu] | vllm_restart.py --compare FIRST SECOND
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

BLOCK = 32


def answer(llm: Any, prompt: str, name: str) -> dict[str, Any]:
    """The prompt's continuation, and the milliseconds to its first token."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=1)
    started = time.monotonic()
    llm.llm_engine.add_request(name, prompt, sampling)
    first = None
    while True:
        for output in llm.llm_engine.step():
            if first is None:
                first = time.monotonic() - started
            if output.finished:
                best = output.outputs[0]
                return {
                    "ms": 1000 * (first or 0),
                    "tokens": list(best.token_ids),
                    "logprobs": [next(iter(of.values())).logprob for of in best.logprobs],
                    "restored": output.num_cached_tokens,
                    "prompt": len(output.prompt_token_ids),
                }


def run(model: str, socket: str, result: Path, gpu: bool) -> None:
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        HF_HUB_OFFLINE="1",
        PYTHONHASHSEED="0",
    )
    from vllm import LLM

    import orbitkv

    llm = LLM(
        model=model,
        dtype="bfloat16" if gpu else "float32",
        max_model_len=8192,
        block_size=BLOCK,
        seed=0,
        enforce_eager=not gpu,
        kv_cache_memory_bytes=256 << 20,
        kv_transfer_config={
            "kv_connector": "OrbitKVConnector",
            "kv_connector_module_path": "orbitkv.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"socket": socket},
        },
    )
    answer(llm, "Warm up.", "warm up")
    prompt = (Path(__file__).parents[1] / "README.md").read_text()[:6000]
    found = {"asked": answer(llm, prompt, "asked")}
    # What vLLM's own prefix cache gives: it computes the same last tokens as a restored prefix.
    found["again"] = answer(llm, prompt, "again")
    whole = found["asked"]["prompt"] // BLOCK
    while orbitkv.manager_status(socket).blocks < whole:
        answer(llm, "Go on.", f"go on {time.monotonic_ns()}")
    result.write_text(json.dumps(found))
    os.kill(os.getpid(), signal.SIGKILL)


def compare(first: dict[str, Any], second: dict[str, Any]) -> int:
    cold, local, warm = first["asked"], first["again"], second["asked"]
    wanted = (cold["prompt"] - 1) // BLOCK * BLOCK
    tokens = cold["tokens"] == warm["tokens"]
    numbers = local["logprobs"] == warm["logprobs"]
    print(f"prompt            {cold['prompt']} tokens")
    print(f"first token       {cold['ms']:.0f} ms computed, {warm['ms']:.0f} ms after the restart")
    print(f"restored          {warm['restored']} tokens")
    print(f"tokens            {'identical' if tokens else 'DIFFERENT'}")
    print(f"log probabilities {'identical' if numbers else 'DIFFERENT'} (to a local prefix hit)")
    return 0 if tokens and numbers and warm["restored"] == wanted and not cold["restored"] else 1


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        sys.exit(compare(*(json.loads(Path(name).read_text()) for name in sys.argv[2:4])))
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), "--gpu" in sys.argv[4:])
