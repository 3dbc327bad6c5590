package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// CheckExposure refuses to put the API on an address that others reach without a key.
func CheckExposure(address, apiKey string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen address %q: %w; write HOST:PORT, for instance 127.0.0.1:8080", address, err)
	}
	if apiKey != "" || host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("listen address %q is reachable from other machines: give an API key (--api-key or MESHNET_API_KEY), or listen on 127.0.0.1", address)
}

// guard lets through what may be let through. A web page that a person visits
// must not reach a loopback API: by its Origin, or by a name of its own that
// resolves to 127.0.0.1 (DNS rebinding), hence both checks, always.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 { // also of a request that is refused: the server reads what is left of its body
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
		}
		if e := s.admit(r); e != nil {
			w.Header().Set("Connection", "close") // at once, whatever of its body is still to come
			writeError(w, e)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

func (s *Server) admit(r *http.Request) *apiError {
	if !s.knownHost(r.Host) {
		return &apiError{status: http.StatusForbidden, kind: "invalid_request_error", code: "host_not_allowed",
			message: fmt.Sprintf("host %q is not one of this server's names; use localhost, an IP address, or start it with --host-name %s", r.Host, hostOnly(r.Host))}
	}
	if origin := r.Header.Get("Origin"); origin != "" && !sameHost(origin, r.Host) || r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		return &apiError{status: http.StatusForbidden, kind: "invalid_request_error", code: "origin_not_allowed",
			message: fmt.Sprintf("requests from web pages of origin %q are not let in", origin)}
	}
	open := r.URL.Path == "/healthz" || r.URL.Path == "/readyz"
	if s.cfg.APIKey != "" && !open && !sameKey(r.Header.Get("Authorization"), s.cfg.APIKey) {
		return &apiError{status: http.StatusUnauthorized, kind: "invalid_request_error", code: "invalid_api_key",
			message: "wrong or missing API key: send it as Authorization: Bearer KEY"}
	}
	return nil
}

func (s *Server) knownHost(host string) bool {
	name := hostOnly(host)
	if name == "localhost" || slices.Contains(s.cfg.Hosts, name) {
		return true
	}
	_, err := netip.ParseAddr(name)
	return err == nil
}

func hostOnly(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, host)
}

// sameKey takes the same time for every wrong key.
func sameKey(header, key string) bool {
	got, ok := strings.CutPrefix(header, "Bearer ")
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(key))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1 && ok
}
