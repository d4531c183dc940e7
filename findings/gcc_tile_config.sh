#!/bin/sh
# gcc 12.2's _tile_loadconfig tells the compiler that it reads 8 of the configuration's 64 bytes, so that at -O2 the others
# need not be written: a function that sets rows of tiles has no instruction that stores them. On a CPU with AMX its next
# product ends with an illegal instruction. Wants Debian 12 (apt-get, dpkg-deb); a CPU with AMX is not needed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
version=12.2.0-14+deb12u1
apt-get download -qq gcc-12="$version" cpp-12="$version" libgcc-12-dev="$version" libisl23 libmpc3 libmpfr6 libgmp10 \
    libc6-dev 2>/dev/null
for package in *.deb; do dpkg-deb -x "$package" root; done

cat > config.c <<'END'
#include <immintrin.h>
void set(unsigned char rows)
{
    struct { unsigned char palette, start, zero[14]; unsigned short bytes[16]; unsigned char rows[16]; } config = {1};
    config.bytes[0] = 64;
    config.rows[0] = rows;
    BARRIER;
    _tile_loadconfig(&config);
}
END
library=root/usr/lib/gcc/x86_64-linux-gnu/12
compile() {  # BARRIER: whether the rows, which come in %edi, are stored before they are loaded
    LD_LIBRARY_PATH=root/usr/lib/x86_64-linux-gnu "$library/cc1" -quiet -nostdinc -isystem "$library/include" \
        -isystem root/usr/include -isystem root/usr/include/x86_64-linux-gnu -O2 -mamx-tile "-DBARRIER=$1" config.c -o config.s
    if grep -q '%dil\|%edi' config.s; then echo stored; else echo 'not stored'; fi
}
plain=$(compile '')
barrier=$(compile '__asm__ volatile("" : : "r"(&config) : "memory")')
echo "gcc $version, -O2: rows of the configuration are $plain; behind a barrier on memory they are $barrier"
test "$plain" = 'not stored' && test "$barrier" = stored
