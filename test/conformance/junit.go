// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
)

// The elements of JUnit's XML that CI systems read.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name      string      `xml:"name,attr"`
		Tests     int         `xml:"tests,attr"`
		Failures  int         `xml:"failures,attr"`
		Skipped   int         `xml:"skipped,attr"`
		Errors    int         `xml:"errors,attr"`
		Time      string      `xml:"time,attr"`
		Timestamp string      `xml:"timestamp,attr"`
		Cases     []junitCase `xml:"testcase"`
		Error     string      `xml:"system-err,omitempty"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitMessage `xml:"failure,omitempty"`
		Skipped *junitMessage `xml:"skipped,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		// Type is the first cause of a failure.
		Type string `xml:"type,attr,omitempty"`
		Text string `xml:",chardata"`
	}
)

// WriteJUnit writes results as JUnit XML. The suite is named after the driver. runErr, where it is not nil, ended the run early.
func WriteJUnit(out io.Writer, driver string, begin time.Time, results []Result, runErr error) error {
	suite := junitSuite{Name: "fettle-conformance " + driver, Timestamp: begin.UTC().Format("2006-01-02T15:04:05")}
	var total time.Duration
	for _, r := range results {
		total += r.Duration
		c := junitCase{Class: driver + "." + r.Check.Group(), Name: r.Check.Name, Time: seconds(r.Duration)}
		first, _, _ := strings.Cut(r.Message, "\n")
		switch r.Status {
		case Failed:
			suite.Failures++
			c.Failure = &junitMessage{Message: first, Text: r.Message}
			if len(r.Causes) > 0 {
				c.Failure.Type = string(r.Causes[0])
			}
		case Skipped:
			suite.Skipped++
			c.Skipped = &junitMessage{Message: first, Text: r.Message}
		case Passed:
		}
		suite.Cases = append(suite.Cases, c)
	}
	suite.Tests, suite.Time = len(results), seconds(total)
	if runErr != nil {
		suite.Errors, suite.Error = 1, runErr.Error()
	}
	if _, err := io.WriteString(out, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(out)
	encoder.Indent("", "  ")
	if err := encoder.Encode(junitSuites{Suites: []junitSuite{suite}}); err != nil {
		return err
	}
	_, err := io.WriteString(out, "\n")
	return err
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
