#!/usr/bin/env bash
# go-ycsb's hashed keys (`insertorder=hashed`, the default) of 256 consecutive records lie next to each other. YCSB's do not.
#
# Most would guess: hashed keys are scattered over the whole key space, and those of the two programs are the same, because both hash
# the record's number with FNV-1a and 64 bits.
# What happens: FNV-1a takes one byte at a time. YCSB (Java) begins with the number's lowest byte, go-ycsb writes the number
# in big-endian order and begins with its highest. There, numbers that differ in the lowest byte differ only before the last
# multiplication: their hashes are within 255 × (2^40 + 435), less than 2^48, of each other. On an ordered store, such
# records are neighbours: a range scan, a cached page or a range partition finds most of 256 records together.
#
# Version: go-ycsb v1.0.3 (github.com/pingcap/go-ycsb), pkg/util/hash.go. YCSB's function is written out below after
# core/src/main/java/site/ycsb/Utils.java of version 0.17.0 (`fnvhash64`). Date: 2026-11-28.
#
#   findings/go-ycsb-keys.sh          needs Go, which fetches the module
#
# Exit codes: 0 it still behaves so, 1 it behaves otherwise, 2 it could not be run.
set -euo pipefail
version=v1.0.3
command -v go >/dev/null || { echo "error: there is no go" >&2; exit 2; }
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
mkdir "$work/finding" && cd "$work/finding"
export GOPATH=$work/go GOFLAGS=-mod=mod
cat >main.go <<'GO'
package main

import (
	"fmt"
	"os"
	"sort"

	"github.com/pingcap/go-ycsb/pkg/util"
)

// FNV-1a from the lowest byte on, and its absolute value.
func lowestFirst(n int64) int64 {
	hash := uint64(0xCBF29CE484222325)
	for range 8 {
		hash = (hash ^ uint64(n&0xff)) * 1099511628211
		n >>= 8
	}
	if int64(hash) < 0 {
		return -int64(hash)
	}
	return int64(hash)
}

// How many of 100,000 records have, as the next larger key, one of the same 256 consecutive records.
func together(hash func(int64) int64) int {
	const records = 100_000
	numbers := make([]int64, records)
	for number := range numbers {
		numbers[number] = int64(number)
	}
	sort.Slice(numbers, func(a, b int) bool { return hash(numbers[a]) < hash(numbers[b]) })
	count := 0
	for place := 1; place < records; place++ {
		if numbers[place-1]/256 == numbers[place]/256 {
			count++
		}
	}
	return count
}

func main() {
	for number := int64(0); number < 3; number++ {
		fmt.Printf("record %d: go-ycsb user%d, lowest byte first user%d\n", number, util.Hash64(number), lowestFirst(number))
	}
	least, most := util.Hash64(0), util.Hash64(0)
	for number := int64(1); number < 256; number++ {
		least, most = min(least, util.Hash64(number)), max(most, util.Hash64(number))
	}
	fmt.Printf("go-ycsb: 256 records within %d, that is 2^48 / %.2f\n", most-least, float64(1<<48)/float64(most-least))
	big, little := together(util.Hash64), together(lowestFirst)
	fmt.Printf("neighbours of the same 256 records, of 100000: go-ycsb %d, lowest byte first %d\n", big, little)
	if most-least >= 1<<48 || big < 99_000 || little > 1_000 {
		fmt.Println("the behaviour has changed")
		os.Exit(1)
	}
	fmt.Println("as described: runs of 256")
}
GO
{
    go mod init finding && go get "github.com/pingcap/go-ycsb@$version" && go mod tidy && go build -o finding .
} >build.log 2>&1 || { tail -n 5 build.log >&2; exit 2; }
go list -m github.com/pingcap/go-ycsb
./finding
