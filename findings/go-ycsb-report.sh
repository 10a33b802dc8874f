#!/usr/bin/env bash
# go-ycsb with its database `basic` prints each request on a line that begins with its name. Its interim reports are lines of
# the same stream, and begin with the same names.
#
# Most would guess: a line that begins with `READ` is a read, as with YCSB (Java), whose reports begin with `[READ],`.
# What happens: at each `measurement.interval`, and at the end, there are lines such as `READ   - Takes(s): 0.9, Count: …`
# and `TOTAL  - Takes(s): …` among the requests. The second word tells them apart: a dash instead of the table's name.
#
# Version: go-ycsb v1.0.3 (github.com/pingcap/go-ycsb), its packages db/basic, pkg/client and pkg/workload.
# Source: pkg/measurement/histograms.go, db/basic/db.go. Date: 2026-11-28.
#
#   findings/go-ycsb-report.sh        needs Go, which fetches the module
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
	"context"

	"github.com/magiconair/properties"
	_ "github.com/pingcap/go-ycsb/db/basic"
	"github.com/pingcap/go-ycsb/pkg/client"
	"github.com/pingcap/go-ycsb/pkg/measurement"
	_ "github.com/pingcap/go-ycsb/pkg/workload"
	"github.com/pingcap/go-ycsb/pkg/ycsb"
)

func main() {
	p := properties.NewProperties()
	for key, value := range map[string]string{
		"recordcount": "100", "operationcount": "25", "threadcount": "1", "target": "10",
		"readproportion": "1", "updateproportion": "0", "measurement.interval": "1",
		"basicdb.simulatedelay": "0", "verbose": "true", "dotransactions": "true",
	} {
		p.Set(key, value)
	}
	measurement.InitMeasure(p)
	workload, err := ycsb.GetWorkloadCreator("core").Create(p)
	if err != nil {
		panic(err)
	}
	db, err := ycsb.GetDBCreator("basic").Create(p)
	if err != nil {
		panic(err)
	}
	client.NewClient(p, workload, client.DbWrapper{DB: db}).Run(context.Background())
}
GO
{
    go mod init finding && go get "github.com/pingcap/go-ycsb@$version" && go mod tidy && go build -o finding .
} >build.log 2>&1 || { tail -n 5 build.log >&2; exit 2; }
go list -m github.com/pingcap/go-ycsb
./finding >out.txt
grep -n '^READ' out.txt | cut -c1-100
requests=$(grep -c '^READ usertable user[0-9]* ' out.txt || true)
reports=$(grep -cE '^READ +- Takes\(s\): ' out.txt || true)
first=$(grep -nE '^READ +- Takes' out.txt | head -n 1 | cut -d: -f1)
last=$(grep -n '^READ usertable' out.txt | tail -n 1 | cut -d: -f1)
echo "$requests requests, $reports reports, the first in line ${first:-none}, the last request in line ${last:-none}"
if [ "$requests" = 25 ] && [ "$reports" -ge 1 ] && [ "$first" -lt "$last" ]; then
    echo "as described: reports are among the requests"
else
    echo "the behaviour has changed"
    exit 1
fi
