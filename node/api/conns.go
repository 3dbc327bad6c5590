package api

import (
	"net"
	"sync"
)

// limitConns is l with at most n connections open: each costs a descriptor and a
// goroutine, whether it ever asks for anything or not.
func limitConns(l net.Listener, n int) net.Listener {
	return &fewConns{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

type fewConns struct {
	net.Listener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

// Accept waits for room first.
func (f *fewConns) Accept() (net.Conn, error) {
	select {
	case f.slots <- struct{}{}:
	case <-f.closed:
		return nil, net.ErrClosed
	}
	c, err := f.Listener.Accept()
	if err != nil {
		<-f.slots
		return nil, err
	}
	return &countedConn{Conn: c, free: sync.OnceFunc(func() { <-f.slots })}, nil
}

// Close ends Accept.
func (f *fewConns) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.Listener.Close()
}

type countedConn struct {
	net.Conn
	free func()
}

// Close makes room.
func (c *countedConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}
