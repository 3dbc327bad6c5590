package host

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/meshnet/meshnet/p2p"
)

// BenchmarkRoundTrip sends frames to and fro on one stream between two hosts of one
// process, as a decode step does on every hop.
func BenchmarkRoundTrip(b *testing.B) {
	for _, transport := range []string{"tcp/0", "udp/0/quic-v1"} {
		for _, size := range []int{2 << 10, 8 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("%.3s/%dKiB", transport, size>>10), func(b *testing.B) {
				var hosts []*Host
				for range 2 {
					h, err := New(b.Context(), Config{Network: "bench", Listen: []string{"/ip4/127.0.0.1/" + transport}, NoMDNS: true})
					if err != nil {
						b.Fatal(err)
					}
					defer h.Close()
					hosts = append(hosts, h)
				}
				hosts[1].Handle(p2p.ActivationProtocol, func(_ context.Context, s p2p.Stream) {
					defer s.Reset()
					buf := make([]byte, size)
					for {
						if _, err := io.ReadFull(s, buf); err != nil {
							return
						}
						if _, err := s.Write(buf); err != nil {
							return
						}
					}
				})
				s, err := hosts[0].Open(b.Context(), self(hosts[1]), p2p.ActivationProtocol)
				if err != nil {
					b.Fatal(err)
				}
				defer s.Reset()
				buf := make([]byte, size)
				b.SetBytes(int64(2 * size))
				for b.Loop() {
					if _, err := s.Write(buf); err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(s, buf); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
