// Package wire is the bytes between peers: frames, their limits and error codes.
//
// A frame is a u32 big-endian length and a msgpack array whose first element is
// the Kind and whose last is the payload, if the kind has one. One frame, one Write.
// Invariant: Parse(Append(f)) == f; nothing is allocated from a length that was
// not checked; the payload of a parsed frame aliases the input.
// Start reading at Frame; docs/wire.md has every field with a hex example.
package wire
