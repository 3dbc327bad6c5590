package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard/selftest"
)

func TestSelfTestVerb(t *testing.T) {
	a, out := modelApp(t)
	if err := (versionCmd{SelfTest: true}).Run(a); err != nil || out.String() != selftest.Want+"\n" {
		t.Errorf("%v: %q", err, out)
	}
	out.Reset()
	a.json, a.threads = true, 3
	var got selfTestJSON
	if err := (versionCmd{SelfTest: true}).Run(a); err != nil {
		t.Error(err)
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || !got.Same || got.Hash != selftest.Want || got.Expected != selftest.Want || got.Threads != 3 || len(got.Models) == 0 {
		t.Errorf("%v: %s", err, out)
	}
	err := fmt.Errorf("join: %w", &selftest.DiffersError{Result: selftest.Result{Hash: "0f"}})
	if code := exitCode(err); code != exitBits || !strings.Contains(err.Error(), "MESHNET_CPU=generic") {
		t.Errorf("other bits end with %d: %v", code, err)
	}
}
