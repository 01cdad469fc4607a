#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes a trace for orbitkv-replay: 12 conversations that take turns, after one system prompt. A
# request names every block of its conversation so far, then new ones. The same at every run.
# usage: make_trace.sh >sample_trace.jsonl
exec awk '
function below(limit) {
	seed = seed * 16807 % 2147483647
	return int(seed / 2147483647 * limit)
}
BEGIN {
	seed = 1
	conversations = 12
	prompt = "1, 2, 3, 4"
	id = 5
	for (request = 0; request < 120; request++) {
		c = below(conversations)
		said = c in history ? history[c] : prompt
		for (fresh = 1 + below(6); fresh > 0; fresh--)
			said = said ", " id++
		print "{\"hash_ids\": [" said "]}"
		history[c] = said
		# Some end, and another begins in their place.
		if (below(12) == 0)
			delete history[c]
	}
}'
