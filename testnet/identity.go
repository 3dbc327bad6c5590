package testnet

import (
	"crypto/rand"
	"os"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
)

// makeIdentity gives a node its key before it runs, so that others can be told its
// peer id from the start.
func makeIdentity(dir string) (id string, err error) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return "", err
	}
	b, err := crypto.MarshalPrivateKey(key)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "identity.key"), b, 0o600); err != nil {
		return "", err
	}
	pid, err := peer.IDFromPrivateKey(key)
	return pid.String(), err
}
