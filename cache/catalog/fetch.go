package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/meshnet/meshnet/cache/blob"
)

// want is what is known of a file beforehand; zero fields: nothing.
type want struct {
	size int64
	sum  blob.Sum
}

// single fetches a file that the list does not know. The hub's own hash is
// the judge, where it states one; what is here under that hash is not fetched.
func (h Hub) single(ctx context.Context, s Source, lock *blob.Lock, o Options) (blob.Sum, error) {
	h, t, err := h.find(ctx, s)
	if err != nil {
		return blob.Sum{}, err
	}
	if _, ok := o.Store.Path(t.sum()); ok {
		return t.sum(), nil
	}
	w, err := lock.Resume()
	if err != nil {
		return blob.Sum{}, err
	}
	defer w.Suspend()
	if err := h.download(ctx, s, t, w, want{}, o); err != nil {
		return blob.Sum{}, err
	}
	_, sum, err := w.Commit(t.sum(), t.size)
	if err != nil {
		return sum, fmt.Errorf("%w; nothing of it was kept: try again", err)
	}
	return sum, nil
}

// fetch appends to w what is missing of a file that is known.
func (h Hub) fetch(ctx context.Context, s Source, w *blob.Writer, known want, o Options) error {
	h, t, err := h.find(ctx, s)
	if err != nil {
		return err
	}
	return h.download(ctx, s, t, w, known, o)
}

func (h Hub) find(ctx context.Context, s Source) (Hub, target, error) {
	h, err := h.withDefaults()
	if err != nil {
		return h, target{}, err
	}
	t, err := h.describe(ctx, s)
	return h, t, err
}

func (h Hub) download(ctx context.Context, s Source, t target, w *blob.Writer, known want, o Options) error {
	switch {
	case known.size > 0 && t.size != known.size:
		return &blob.MismatchError{WantSize: known.size, GotSize: t.size}
	case known.sum != blob.Sum{} && t.sum() != blob.Sum{} && t.sum() != known.sum:
		return &blob.MismatchError{WantSize: -1, Want: known.sum, Got: t.sum()}
	case t.size < 4:
		return fmt.Errorf("%w: it has %d bytes", errNotGGUF, t.size)
	case t.size > h.MaxBytes:
		return fmt.Errorf("the file has %s, more than the %s that are allowed", blob.Bytes(t.size), blob.Bytes(h.MaxBytes))
	}
	// What is there may be continued if it is a part of the same file: surely
	// so for a known hash, else when the hub's etag has not changed.
	if id := fmt.Sprintf("%s %d", t.etag, t.size); known.sum == (blob.Sum{}) && w.Note() != id {
		if err := errors.Join(w.Cut(0), w.SetNote(id)); err != nil {
			return err
		}
	}
	if w.Size() > t.size {
		if err := w.Cut(0); err != nil {
			return err
		}
	}
	if err := o.Store.Space(t.size - w.Size()); err != nil {
		return err
	}
	o.Progress.Start("hf "+s.Repo+"/"+s.File, t.size)
	o.Progress.At(w.Size())
	return h.tries(ctx, t, s, w, o)
}

// tries repeats attempts until w is as long as the file.
func (h Hub) tries(ctx context.Context, t target, s Source, w *blob.Writer, o Options) error {
	d := &attempt{h: h, t: t, name: s.Repo + "/" + s.File, w: w, at: o.Progress.At}
	for failed := 0; w.Size() < t.size; {
		before := w.Size()
		err := d.run(ctx)
		if err == nil && w.Size() < t.size {
			err = temporary{io.ErrUnexpectedEOF, 0}
		}
		if err == nil {
			continue
		}
		var temp temporary
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.As(err, &temp):
			return err
		case w.Size() > before:
			failed = 0
		}
		if failed++; failed == maxTries {
			return fmt.Errorf("gave up after %d tries: %w; %s of %s are kept, and the next pull goes on from there",
				failed, err, blob.Bytes(w.Size()), blob.Bytes(t.size))
		}
		if err := h.Sleep(ctx, min(max(temp.after, time.Second<<(failed-1)), maxWait)); err != nil {
			return err
		}
	}
	return nil
}

// attempt is one file's download; each run is one request for what is missing.
type attempt struct {
	h         Hub
	t         target
	name      string
	w         *blob.Writer
	at        func(int64)
	validator string // the strong ETag of the host that sent the last bytes
}

var errIdle = errors.New("no bytes came for too long")

// run begins at the hub each time: links to where the bytes are expire.
func (d *attempt) run(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	idle := time.AfterFunc(d.h.Idle, func() { cancel(errIdle) })
	defer idle.Stop()

	have := d.w.Size()
	req, err := d.h.request(ctx, http.MethodGet, d.t.url)
	if err != nil {
		return err
	}
	if have > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
		if d.validator != "" {
			req.Header.Set("If-Range", d.validator)
		}
	}
	resp, err := d.h.client(true).Do(req)
	if err != nil {
		if context.Cause(ctx) == errIdle {
			err = errIdle
		}
		return d.h.unreachable(err)
	}
	defer resp.Body.Close()
	if err := d.accept(resp, have, req.URL.Host); err != nil {
		return err
	}
	if tag := resp.Header.Get("ETag"); tag != "" && !strings.HasPrefix(tag, "W/") {
		d.validator = tag
	} else {
		d.validator = ""
	}
	body := io.LimitReader(resp.Body, d.t.size-d.w.Size()+1)
	err = pour(ctx, d.w, body, 0, func(n int64) { idle.Reset(d.h.Idle); d.at(n) })
	if d.w.Size() > d.t.size {
		err := &blob.MismatchError{WantSize: d.t.size, GotSize: d.w.Size()}
		return errors.Join(err, d.w.Cut(0))
	}
	return d.broken(parent, ctx, err)
}

// accept decides what an answer is good for, and cuts w to where it begins.
func (d *attempt) accept(resp *http.Response, have int64, hub string) error {
	switch resp.StatusCode {
	case http.StatusPartialContent:
		if from, total, ok := contentRange(resp.Header.Get("Content-Range")); !ok || from != have || total != d.t.size {
			err := fmt.Errorf("the hub sent another range than was asked for: %q", resp.Header.Get("Content-Range"))
			return errors.Join(temporary{err, 0}, d.w.Cut(0))
		}
		return nil
	case http.StatusOK: // the whole file: ranges are unknown there, or it changed
		if resp.ContentLength >= 0 && resp.ContentLength != d.t.size {
			return temporary{&blob.MismatchError{WantSize: d.t.size, GotSize: resp.ContentLength}, 0}
		}
		return d.w.Cut(0)
	case http.StatusRequestedRangeNotSatisfiable:
		return errors.Join(temporary{&HubError{resp.StatusCode, d.name, "what was kept was thrown away"}, 0}, d.w.Cut(0))
	case http.StatusUnauthorized, http.StatusForbidden:
		if resp.Request.URL.Host != hub { // not the hub: a signed link that has expired
			return temporary{&HubError{Status: resp.StatusCode, File: d.name}, 0}
		}
	}
	return statusError(resp, d.name)
}

// broken sorts the errors of reading: a full disk and a wrong kind of file
// stay, a connection that broke is tried again.
func (d *attempt) broken(parent, ctx context.Context, err error) error {
	var space *blob.SpaceError
	switch {
	case err == nil:
		return nil
	case parent.Err() != nil:
		return context.Cause(parent)
	case errors.As(err, &space), errors.Is(err, errNotGGUF):
		return err
	case context.Cause(ctx) == errIdle:
		return temporary{errIdle, 0}
	}
	return temporary{fmt.Errorf("the connection broke: %w", err), 0}
}

// contentRange reads "bytes FROM-TO/TOTAL".
func contentRange(text string) (from, total int64, ok bool) {
	rest, ok := strings.CutPrefix(text, "bytes ")
	span, all, ok2 := strings.Cut(rest, "/")
	first, last, ok3 := strings.Cut(span, "-")
	if !ok || !ok2 || !ok3 {
		return 0, 0, false
	}
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(last, 10, 64)
	total, err3 := strconv.ParseInt(all, 10, 64)
	return from, total, err1 == nil && err2 == nil && err3 == nil && from >= 0 && to >= from && total > to
}
