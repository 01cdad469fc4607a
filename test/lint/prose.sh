#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# README.md and doc/*.md: lines of at most 110 characters outside tables and code, no blanks at the
# ends of lines, and nothing named by a number or word of a document that is not in the repository.
# test/lint/prose.txt lists what does not comply yet, "RULE FILE" a line: what is listed is not
# complained of, and said when it complies. Usage: prose.sh ROOT
set -eu
cd "$1"
found=$(mktemp)
trap 'rm -f "$found"' EXIT

for file in README.md doc/*.md; do
	# Without the later bytes of UTF-8 sequences, bytes are characters.
	LC_ALL=C tr -d '\200-\277' <"$file" | awk -v file="$file" '
		function complain(rule, what) {
			print rule " " file ":" FNR ": " what
		}
		/[ \t]$/ { complain("blanks", "ends with a blank") }
		/^```/ { code = !code }
		code || /^(    |\t|```)/ { next }
		!/^\|/ && length($0) > 110 { complain("length", length($0) " characters") }
		{
			line = " " $0 " "
			gsub(/[^A-Za-z0-9_]/, " ", line)
			if (match(line, / ([Ss]eed|P[1-9]|P1[0-3]|R[1-9]|R1[01]|S[1-9]|S[1-3][0-9]|S4[0-2]) /))
				complain("names", "\"" substr(line, RSTART + 1, RLENGTH - 2) \
					"\" names something outside of the repository")
		}
	'
done >"$found"

fail=0
while read -r rule file; do
	if grep -q "^$rule $file:" "$found"; then
		grep -v "^$rule $file:" "$found" >"$found.left" || true
		mv "$found.left" "$found"
	else
		echo "$file complies with \"$rule\": take it off test/lint/prose.txt"
	fi
done <test/lint/prose.txt
if [ -s "$found" ]; then
	cut -d ' ' -f 2- "$found"
	fail=1
fi
[ "$fail" = 0 ] && echo "lines and names of the documents are as they should be"
exit "$fail"
