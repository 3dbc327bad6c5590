package testnet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
)

// starter starts processes from one thread that lives as long as it does: the
// kernel ends a child with Pdeathsig when the thread that made it dies.
type starter struct {
	work chan func()
	quit chan struct{}
	once sync.Once

	mu     sync.Mutex
	procs  []*process
	closed bool
	wg     sync.WaitGroup // one for each process, and the thread
}

// process is a child and its end.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and was waited for
}

func newStarter() *starter {
	s := &starter{work: make(chan func()), quit: make(chan struct{})}
	s.wg.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for {
			select {
			case f := <-s.work:
				f()
			case <-s.quit:
				return
			}
		}
	})
	return s
}

// start starts cmd with its output appended to a log.
func (s *starter) start(cmd *exec.Cmd, log string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	return s.launch(cmd)
}

// launch starts cmd and owns it until its end.
func (s *starter) launch(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = childAttr()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the mesh is closed")
	}
	started := make(chan error, 1)
	s.work <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	s.procs = append(slices.DeleteFunc(s.procs, func(p *process) bool { return !p.running() }), p)
	s.wg.Go(func() {
		cmd.Wait()
		close(p.done)
	})
	return p, nil
}

// closeAll kills every process that still runs and waits for all of them.
func (s *starter) closeAll() {
	s.mu.Lock()
	s.closed = true
	for _, p := range s.procs {
		if p.running() {
			p.signal(syscall.SIGKILL)
		}
	}
	for _, p := range s.procs {
		<-p.done
	}
	s.mu.Unlock()
	s.once.Do(func() { close(s.quit) })
	s.wg.Wait()
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// signal is safe against a reused process id: os.Process knows whether it was waited for.
func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }
