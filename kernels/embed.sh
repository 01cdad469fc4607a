#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# embed.sh IMAGE.fatbin OUT.c: the image as a C array of 64-bit words.
set -eu
{
	echo '/* Generated from the compiled copy kernel. */'
	echo '#include "device/cuda/cuda_image.h"'
	echo 'const uint64_t oki_cuda_image[] = {'
	od -An -v -t x8 "$1" | sed 's/ *\([0-9a-f]\{16\}\)/0x\1u,/g'
	echo '};'
	echo "const size_t oki_cuda_image_bytes = $(wc -c <"$1");"
} >"$2"
