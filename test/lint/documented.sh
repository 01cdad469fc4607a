#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every exported call and every struct of the public headers has a comment directly before it.
# Usage: documented.sh INCLUDE_DIR
set -eu
awk '
	FNR == 1 { before = "" }
	/^OKV_EXPORT / || /^struct [a-z_0-9]+ \{/ {
		count++
		if (before !~ /^ \*\/$/ && before !~ /^ \* .*\*\/$/ && before !~ /^\/\*.*\*\/$/) {
			print FILENAME ":" FNR ": no comment directly before: " $0
			fail = 1
		}
	}
	{ before = $0 }
	END {
		if (!fail)
			print count " calls and structs, each with its comment"
		exit fail || !count
	}
' "$1"/orbitkv/*.h
