package cache

import (
	"strings"
	"testing"
	"time"
)

func TestFromEnv(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  map[string]string
		want Config
		errs []string // each must be in the one error
	}{
		{name: "nothing set"},
		{name: "empty is unset", env: map[string]string{EnvTTL: "", EnvMaxSessions: " "}},
		{name: "all set", env: map[string]string{EnvTTL: "5", EnvMaxSessions: "3", EnvMaxBytes: "64 MiB"},
			want: Config{TTL: 5 * time.Second, MaxSessions: 3, MaxBytes: 64 << 20}},
		{name: "plain bytes", env: map[string]string{EnvMaxBytes: "12345"}, want: Config{MaxBytes: 12345}},
		{name: "all wrong, all told", env: map[string]string{EnvTTL: "0", EnvMaxSessions: "many", EnvMaxBytes: "-1"},
			errs: []string{`MESHNET_SHARD_CACHE_TTL_SECONDS="0"`, `MESHNET_SHARD_CACHE_MAX_SESSIONS="many"`, `MESHNET_SHARD_CACHE_MAX_BYTES="-1"`}},
		{name: "a TTL has no unit", env: map[string]string{EnvTTL: "10m"}, errs: []string{"whole number of seconds"}},
		{name: "overflow", env: map[string]string{EnvTTL: "99999999999999999999", EnvMaxBytes: "99999999999 GiB"},
			errs: []string{EnvTTL, EnvMaxBytes}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := FromEnv(func(k string) string { return tc.env[k] })
			if len(tc.errs) == 0 {
				if err != nil || got.TTL != tc.want.TTL || got.MaxSessions != tc.want.MaxSessions || got.MaxBytes != tc.want.MaxBytes {
					t.Fatalf("got %+v, %v", got, err)
				}
				return
			}
			for _, want := range tc.errs {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v lacks %q", err, want)
				}
			}
		})
	}
}

func TestNewRefusesAllFaultsAtOnce(t *testing.T) {
	_, err := New(Config{TTL: -1, MaxSessions: -2, MaxBytes: -3})
	for _, want := range []string{"TTL -1ns", "MaxSessions -2", "MaxBytes -3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
}

func TestDefaults(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.TTL != 600*time.Second || st.MaxSessions != 16 || st.MaxBytes < 64<<20 {
		t.Errorf("defaults %+v", st)
	}
}

func TestDefaultBytes(t *testing.T) {
	const big = "MemTotal:       33554432 kB\nMemFree: 1 kB\nMemAvailable:   29360128 kB\n" // 32 and 28 GiB
	for _, tc := range []struct {
		name, meminfo, cgroup string
		want                  int64
	}{
		{"a quarter of memory", big, "", 8 << 30},
		{"little free", "MemTotal: 33554432 kB\nMemAvailable: 3145728 kB\n", "max\n", 1 << 30},
		{"less than the reserve free", "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n", "", 64 << 20},
		{"a control group's limit", big, "4294967296\n", 1 << 30},
		{"unknown system", "", "", 1 << 30},
		{"garbage", "MemTotal: x kB\nMemAvailable: 99999999999999999999 kB", "?", 1 << 30},
	} {
		if got := defaultBytes(tc.meminfo, tc.cgroup); got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "7": 7, "7B": 7, "1KiB": 1024, "2 mib": 2 << 20, "3GIB": 3 << 30, "1TiB": 1 << 40,
		"": -1, "B": -1, "1.5GiB": -1, "-1": -1, "1 GB": -1, "1kb": -1, "9223372036854775807KiB": -1, "1 2": -1, "KiB1": -1,
	} {
		got, err := ParseBytes(in)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"1", "1 KiB", "9223372036854775807", "8388608TiB", "-1", "kib", "1 2 mib"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseBytes(s); err == nil && n < 0 {
			t.Errorf("%q is %d", s, n)
		}
	})
}
