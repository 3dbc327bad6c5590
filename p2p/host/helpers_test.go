package host

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails when a host leaves a goroutine behind. libp2p's search for a UPnP
// router ends by its own clock, seconds later.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/libp2p/go-libp2p/p2p/net/nat/internal/nat.discoverNATs.func1"))
}

// lines is a log that tests read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func netip4(s string) netip.Addr { return netip.MustParseAddr(s) }
