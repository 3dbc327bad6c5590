package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/meshnet/meshnet/testnet"
)

const verifyAnswer = 256 // tokens of an answer

// verify asks the same with ever more of the work checked by other holders, in turns,
// and shows what that costs and what the checks came to.
func (m *measure) verify() error {
	mesh, err := m.mesh(append(m.equal(3), m.equal(3)...)...)
	if err != nil {
		return err
	}
	defer mesh.Close()
	percents := []string{"0", "2", "10", "100"}
	speeds := map[string][]float64{}
	sums := map[string]testnet.Checks{}
	var ids []int32
	for round := range m.rounds {
		turn := slices.Clone(percents)
		if round%2 == 1 {
			slices.Reverse(turn)
		}
		for _, p := range turn {
			a, err := mesh.Chat(m.ctx, testnet.Ask{Prompt: story(1), Tokens: verifyAnswer, Args: []string{"--system=", "--verify", p}})
			if err != nil {
				return fmt.Errorf("--verify %s: %w", p, err)
			}
			if ids == nil {
				ids = a.IDs
			}
			if !slices.Equal(ids, a.IDs) {
				return errors.New("another text than the one before")
			}
			speeds[p] = append(speeds[p], a.DecodeTokensPerS)
			c := sums[p]
			c.Agreed, c.Differed, c.Skipped = c.Agreed+a.Checks.Agreed, c.Differed+a.Checks.Differed, c.Skipped+a.Checks.Skipped
			sums[p] = c
			fmt.Fprintf(os.Stderr, "--verify %s: %.1f tokens/s, %+v\n", p, a.DecodeTokensPerS, a.Checks)
		}
	}
	fmt.Printf("three hops, every layer held by two peers, answers of %d tokens\n\n", verifyAnswer)
	fmt.Println("| --verify | decode, tokens/s | over 0 | checks that agreed | differed | were not made |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, p := range percents {
		c := sums[p]
		fmt.Printf("| %s | %.1f | %.2f | %d | %d | %d |\n", p, median(speeds[p]), median(speeds[p])/median(speeds["0"]), c.Agreed, c.Differed, c.Skipped)
	}
	return nil
}
