package cache

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// The environment variables that FromEnv reads.
const (
	EnvTTL         = "MESHNET_SHARD_CACHE_TTL_SECONDS"
	EnvMaxSessions = "MESHNET_SHARD_CACHE_MAX_SESSIONS"
	EnvMaxBytes    = "MESHNET_SHARD_CACHE_MAX_BYTES"
)

// Defaults of Config.
const (
	DefaultTTL         = 600 * time.Second
	DefaultMaxSessions = 16
)

// Config of a Store. A zero field takes its default; a negative one is an error.
type Config struct {
	TTL         time.Duration    // idle time after which an entry is gone; default 600 s
	MaxSessions int              // default 16
	MaxBytes    int64            // default min(25 % of memory, available memory − 2 GiB), at least 64 MiB
	Now         func() time.Time // default time.Now
}

// withDefaults fills the zero fields and says everything that is wrong at once.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.TTL < 0 {
		errs = append(errs, fmt.Errorf("TTL %v is negative", c.TTL))
	}
	if c.MaxSessions < 0 {
		errs = append(errs, fmt.Errorf("MaxSessions %d is negative", c.MaxSessions))
	}
	if c.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("MaxBytes %d is negative", c.MaxBytes))
	}
	if len(errs) > 0 {
		return c, fmt.Errorf("cache: %w", errors.Join(errs...))
	}
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	if c.MaxSessions == 0 {
		c.MaxSessions = DefaultMaxSessions
	}
	if c.MaxBytes == 0 {
		meminfo, _ := os.ReadFile("/proc/meminfo")
		cgroup, _ := os.ReadFile("/sys/fs/cgroup/memory.max")
		c.MaxBytes = defaultBytes(string(meminfo), string(cgroup))
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// FromEnv reads a Config from environment variables: getenv is os.Getenv, or a
// test's. Unset and empty variables leave a field zero, that is, the default.
// All bad values are reported in one error.
func FromEnv(getenv func(string) string) (Config, error) {
	var c Config
	var errs []error
	read := func(name, want string, lo, hi int64, parse func(string) (int64, error), set func(int64)) {
		text := strings.TrimSpace(getenv(name))
		if text == "" {
			return
		}
		v, err := parse(text)
		if err != nil || v < lo || v > hi {
			errs = append(errs, fmt.Errorf("%s=%q: want %s; unset it to use the default", name, text, want))
			return
		}
		set(v)
	}
	whole := func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }
	read(EnvTTL, "a whole number of seconds from 1 to 31536000", 1, 365*24*3600, whole,
		func(v int64) { c.TTL = time.Duration(v) * time.Second })
	read(EnvMaxSessions, "a whole number from 1 to 1000000", 1, 1e6, whole,
		func(v int64) { c.MaxSessions = int(v) })
	read(EnvMaxBytes, "a positive number of bytes, or one with KiB, MiB or GiB behind it", 1, math.MaxInt64, ParseBytes,
		func(v int64) { c.MaxBytes = v })
	return c, errors.Join(errs...)
}

// ParseBytes reads a size: a whole number, alone or followed by B, KiB, MiB,
// GiB or TiB (powers of 1024), case and a space between them ignored.
func ParseBytes(s string) (int64, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	shift := map[string]uint{"": 0, "b": 0, "kib": 10, "mib": 20, "gib": 30, "tib": 40}
	n, ok := shift[strings.ToLower(strings.TrimSpace(s[len(digits):]))]
	if !ok {
		return 0, fmt.Errorf("size %q: unknown unit; use B, KiB, MiB, GiB or TiB", s)
	}
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || v < 0 || v > math.MaxInt64>>n {
		return 0, fmt.Errorf("size %q is not a number of bytes", s)
	}
	return v << n, nil
}

// defaultBytes is min(25 % of memory, available memory − 2 GiB), at least
// 64 MiB, from the texts of /proc/meminfo and of the control group's
// memory.max, either of which may be empty.
func defaultBytes(meminfo, cgroup string) int64 {
	const floor, unknown = 64 << 20, 1 << 30
	total, available := int64(-1), int64(-1)
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		if v, err := strconv.ParseInt(f[1], 10, 52); err == nil {
			switch f[0] {
			case "MemTotal:":
				total = v << 10
			case "MemAvailable:":
				available = v << 10
			}
		}
	}
	if total < 0 || available < 0 {
		return unknown
	}
	if v, err := strconv.ParseInt(strings.TrimSpace(cgroup), 10, 62); err == nil && v > 0 {
		total, available = min(total, v), min(available, v)
	}
	return max(floor, min(total/4, available-2<<30))
}
