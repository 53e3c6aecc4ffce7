// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
)

var (
	// ErrFailed says that a check failed.
	ErrFailed = errors.New("does not conform")
	// ErrInconclusive says that too little was checked to say anything.
	ErrInconclusive = errors.New("inconclusive")
)

// Judge returns nil where a run speaks for the driver, ErrFailed where a check failed, and ErrInconclusive where no check ran or more than
// half of them were skipped.
func Judge(driver string, results []Result) error {
	count := map[Status]int{}
	for _, r := range results {
		count[r.Status]++
	}
	switch all, skipped := len(results), count[Skipped]; {
	case count[Failed] > 0:
		return fmt.Errorf("driver %s %w: it failed %d of %d checks, with %d findings", driver, ErrFailed, count[Failed], all,
			len(Findings(results)))
	case all == 0:
		return fmt.Errorf("%w: no check ran on driver %s", ErrInconclusive, driver)
	case 2*skipped > all:
		return fmt.Errorf("%w: %d of %d checks of driver %s were skipped; each says what it lacked", ErrInconclusive, skipped, all, driver)
	}
	return nil
}
