# SPDX-License-Identifier: Apache-2.0
"""OrbitKV as a KV connector of vLLM: doc/vllm.md."""
