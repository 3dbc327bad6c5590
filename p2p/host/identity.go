package host

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sys/unix"

	"github.com/meshnet/meshnet/p2p"
)

// ErrIdentityInUse: another process holds the directory's lock. Two processes with
// one key would confuse the whole mesh.
var ErrIdentityInUse = errors.New("identity in use")

// lockDir takes the directory's lock for the life of the process, or until the file
// that it returns is closed. The kernel lets go of it when the process dies.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the node's directory: %w", err)
	}
	name := filepath.Join(dir, "lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the node's lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w", name, err)
		}
		who := "another process"
		if b, err := os.ReadFile(name); err == nil && len(b) > 0 && len(b) < 32 {
			who = "process " + strings.TrimSpace(string(b))
		}
		return nil, fmt.Errorf("%w: %s runs as the node in %s: stop it, or give this one another --name", ErrIdentityInUse, who, dir)
	}
	f.Truncate(0)
	f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0) // for the message above only
	return f, nil
}

// loadIdentity reads the directory's key, or makes one.
func loadIdentity(dir string) (crypto.PrivKey, error) {
	name := filepath.Join(dir, "identity.key")
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return makeIdentity(name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the node's identity: %w", err)
	}
	key, err := crypto.UnmarshalPrivateKey(b)
	if err != nil {
		return nil, fmt.Errorf("identity %s is damaged: restore it, or remove it to become a new peer: %w", name, err)
	}
	if key.Type() != crypto.Ed25519 {
		return nil, fmt.Errorf("identity %s is a %s key, not ed25519: remove it to become a new peer", name, key.Type())
	}
	if info, err := os.Stat(name); err == nil && info.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(name, 0o600); err != nil {
			return nil, fmt.Errorf("identity %s may be read by others: %w", name, err)
		}
	}
	return key, nil
}

func makeIdentity(name string) (crypto.PrivKey, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	b, err := crypto.MarshalPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a new identity: %w", err)
	}
	if err := writeFile(name, b); err != nil {
		return nil, fmt.Errorf("keeping the new identity: %w", err)
	}
	return key, nil
}

func newKey() (crypto.PrivKey, error) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making an identity: %w", err)
	}
	return key, nil
}

// writeFile replaces a file, mode 0600, so that a crash leaves the old or the new one.
func writeFile(name string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*") // CreateTemp makes it 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// Verify says whether sig is the peer's signature of msg: the peer id holds the
// public key. It is an offer.Verifier.
func Verify(id string, msg, sig []byte) error {
	p, err := peer.Decode(id)
	if err != nil {
		return fmt.Errorf("peer id %q: %w", id, err)
	}
	key, err := p.ExtractPublicKey()
	if err != nil {
		return fmt.Errorf("peer id %q holds no public key: %w", id, err)
	}
	if key.Type() != crypto.Ed25519 {
		return fmt.Errorf("peer id %q: a %s key, not ed25519", id, key.Type())
	}
	ok, err := key.Verify(msg, sig)
	if err != nil {
		return fmt.Errorf("checking the signature of %s: %w", p2p.PeerID(id).Short(), err)
	}
	if !ok {
		return fmt.Errorf("not signed by %s", p2p.PeerID(id).Short())
	}
	return nil
}
