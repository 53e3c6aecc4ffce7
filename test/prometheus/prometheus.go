// SPDX-License-Identifier: Apache-2.0

// Package prometheus runs a Prometheus that scrapes what a test names, with the chart's rules, and asks it.
package prometheus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fettle-dev/fettle/test/check"
)

// interval is how often targets are scraped and rules evaluated.
const interval = time.Second

// Target is what is scraped, as by the chart's monitors: labels of what is scraped count before those of the target.
type Target struct {
	// Job is the label job, URL that of the metrics, and Labels are more labels.
	Job, URL string
	Labels   map[string]string
	// CA, Certificate and Key are files with which an API server is reached, whose proxy reaches the metrics. Empty: not needed.
	CA, Certificate, Key string
}

// Server is a running Prometheus.
type Server struct {
	command *exec.Cmd
	ended   <-chan error
	log     check.Buffer
}

// listens is the line of the log that says which port Prometheus got.
var listens = regexp.MustCompile(`msg="Listening on" address=(\S+)`)

// Start runs a program of Prometheus in a directory of its own until Stop. The rules are a file.
func Start(program, dir, rules string, targets []Target) (*Server, error) {
	config, err := configuration(rules, targets)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return nil, err
	}
	s := &Server{}
	s.command = exec.Command(program, "--config.file="+path, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:0", "--log.level=info")
	s.command.Dir, s.command.Stdout, s.command.Stderr = dir, &s.log, &s.log
	s.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if s.ended, err = check.StartChild(s.command); err != nil {
		return nil, fmt.Errorf("start Prometheus: %w", err)
	}
	return s, nil
}

// Stop ends it, and returns what it logged.
func (s *Server) Stop() string {
	_ = s.command.Process.Kill()
	<-s.ended //nolint:errcheck // that it was killed
	return s.log.String()
}

// Sample is a series of an answer.
type Sample struct {
	Metric map[string]string
	Value  [2]any
}

// Query evaluates an expression now. It fails until Prometheus listens.
func (s *Server) Query(ctx context.Context, expr string) ([]Sample, error) {
	address := listens.FindStringSubmatch(s.log.String())
	if address == nil {
		return nil, errors.New("ask Prometheus: it does not listen yet")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address[1]+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask Prometheus: %w", err)
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []Sample }
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("ask Prometheus: %s: %w", response.Status, err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("ask Prometheus for %s: %s", expr, answer.Error)
	}
	return answer.Data.Result, nil
}

// configuration returns Prometheus' configuration file.
func configuration(rules string, targets []Target) ([]byte, error) {
	scrapes := make([]map[string]any, 0, len(targets))
	for i, t := range targets {
		at, err := url.Parse(t.URL)
		if err != nil || at.Host == "" {
			return nil, errors.Join(fmt.Errorf("target %q: want a URL", t.URL), err)
		}
		labels := map[string]string{"job": t.Job}
		for name, value := range t.Labels {
			labels[name] = value
		}
		scrape := map[string]any{
			"job_name": fmt.Sprintf("target-%d", i), "scheme": at.Scheme, "metrics_path": at.Path, "honor_labels": true,
			"static_configs": []any{map[string]any{"targets": []string{at.Host}, "labels": labels}},
		}
		if t.CA != "" {
			scrape["tls_config"] = map[string]string{"ca_file": t.CA, "cert_file": t.Certificate, "key_file": t.Key}
		}
		scrapes = append(scrapes, scrape)
	}
	return sigsyaml.Marshal(map[string]any{
		"global":     map[string]string{"scrape_interval": interval.String(), "evaluation_interval": interval.String()},
		"rule_files": []string{rules}, "scrape_configs": scrapes,
	})
}
