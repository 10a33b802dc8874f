// Checks a history of `farleaf torture --json` for linearizability with Porcupine: a second opinion
// on the checker of crates/history. docs/torture.md has the fields of a line.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

type line struct {
	Client   int         `json:"client"`
	Op       string      `json:"op"`
	Key      string      `json:"key"`
	Value    string      `json:"value"`
	Expected string      `json:"expected"`
	Lower    *string     `json:"lower"`
	Upper    *string     `json:"upper"`
	Reverse  bool        `json:"reverse"`
	Limit    uint64      `json:"limit"`
	Found    *string     `json:"found"`
	Applied  *bool       `json:"applied"`
	Records  [][2]string `json:"records"`
	Call     int64       `json:"call"`
	Return   *int64      `json:"return"`
}

// An operation on one key. A scan is a get of each key that it covers.
type input struct {
	op, key, value, expected string
}

type output struct {
	known   bool
	applied bool
	found   string // "" if absent or not said
}

// The state of a key is its value, or "" if it is absent.
func step(state, in, out any) (bool, any) {
	now, i, o := state.(string), in.(input), out.(output)
	applies := true
	next := i.value
	switch i.op {
	case "get":
		return now == o.found, now
	case "insert":
		applies = now == ""
	case "update":
		applies = now != ""
	case "remove":
		applies, next = now != "", ""
	case "compare-exchange":
		applies = now == i.expected
		if o.known && !o.applied {
			return !applies && now == o.found, now
		}
	}
	if o.known && o.applied != applies {
		return false, now
	}
	if applies {
		return true, next
	}
	return true, now
}

func number(text string) uint64 {
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: `%s` is no key\n", text)
		os.Exit(2)
	}
	return value
}

func text(found *string) string {
	if found == nil {
		return ""
	}
	return *found
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: porcupine FILE")
		os.Exit(2)
	}
	file, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(2)
	}
	var lines []line
	keys := map[uint64]bool{}
	reader := bufio.NewScanner(file)
	reader.Buffer(nil, 1<<26)
	for reader.Scan() {
		var l line
		if err := json.Unmarshal(reader.Bytes(), &l); err != nil {
			fmt.Fprintf(os.Stderr, "error: line %d: %v\n", len(lines)+1, err)
			os.Exit(2)
		}
		lines = append(lines, l)
		if l.Key != "" {
			keys[number(l.Key)] = true
		}
		for _, record := range l.Records {
			keys[number(record[0])] = true
		}
	}
	if err := reader.Err(); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(2)
	}
	sorted := make([]uint64, 0, len(keys))
	for key := range keys {
		sorted = append(sorted, key)
	}
	sort.Slice(sorted, func(a, b int) bool { return sorted[a] < sorted[b] })

	history := map[uint64][]porcupine.Operation{}
	add := func(l *line, key uint64, in input, out output) {
		end := int64(math.MaxInt64)
		if l.Return != nil {
			end = *l.Return
		}
		operation := porcupine.Operation{ClientId: l.Client, Input: in, Call: l.Call, Output: out, Return: end}
		history[key] = append(history[key], operation)
	}
	for at := range lines {
		l := &lines[at]
		if l.Op != "scan" {
			known := l.Return != nil
			out := output{known: known, applied: l.Applied != nil && *l.Applied, found: text(l.Found)}
			add(l, number(l.Key), input{l.Op, l.Key, l.Value, l.Expected}, out)
			continue
		}
		lower, upper := uint64(0), uint64(math.MaxUint64)
		if l.Lower != nil {
			lower = number(*l.Lower)
		}
		if l.Upper != nil {
			upper = number(*l.Upper)
		}
		// A scan that has reached its limit covers the keys up to its last record.
		if count := uint64(len(l.Records)); count > 0 && count >= l.Limit {
			last := number(l.Records[count-1][0])
			if l.Reverse {
				lower = last
			} else {
				upper = last
			}
		}
		found := map[uint64]string{}
		for _, record := range l.Records {
			found[number(record[0])] = record[1]
		}
		first := sort.Search(len(sorted), func(at int) bool { return sorted[at] >= lower })
		for _, key := range sorted[first:] {
			if key > upper {
				break
			}
			add(l, key, input{op: "get"}, output{known: true, found: found[key]})
		}
	}
	model := porcupine.Model{Init: func() any { return "" }, Step: step}
	lost, undecided := 0, 0
	for _, key := range sorted {
		switch porcupine.CheckOperationsTimeout(model, history[key], time.Minute) {
		case porcupine.Illegal:
			lost++
			fmt.Printf("key %d is not linearizable\n", key)
		case porcupine.Unknown:
			undecided++
			fmt.Printf("key %d is not decided within a minute\n", key)
		}
	}
	verdict := "linearizable"
	switch {
	case lost > 0:
		verdict = "not linearizable"
	case undecided > 0:
		verdict = "not decided"
	}
	fmt.Printf("%d operations on %d keys, %d lost: %s\n", len(lines), len(sorted), lost, verdict)
	if verdict != "linearizable" {
		os.Exit(1)
	}
}
