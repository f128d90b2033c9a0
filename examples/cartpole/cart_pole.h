// CartPole-v1: a pole on a cart, to be kept upright by pushing left or right. The physics and
// limits of Gym's environment of that name.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <random>

class CartPole {
 public:
  using State = std::array<float, 4>;  // position, velocity, angle, angular velocity
  static constexpr double kRewardThreshold = 475;

  struct Outcome {
    State state;
    double reward;
    bool done;
  };

  explicit CartPole(uint64_t seed) : random_(seed) {}

  State reset() {
    std::uniform_real_distribution<double> small(-0.05, 0.05);
    for (double& value : state_) value = small(random_);
    steps_ = 0;
    return observation();
  }

  /// `action` 1 pushes to the right, 0 to the left.
  Outcome step(int64_t action) {
    auto& [x, speed, angle, turn] = state_;
    const double force = action == 1 ? kForce : -kForce;
    const double cosine = std::cos(angle), sine = std::sin(angle);
    const double pushed = (force + kPoleMoment * turn * turn * sine) / kTotalMass;
    const double turning = (kGravity * sine - cosine * pushed) /
                           (kHalfLength * (4.0 / 3.0 - kPoleMass * cosine * cosine / kTotalMass));
    const double moving = pushed - kPoleMoment * turning * cosine / kTotalMass;
    x += kTau * speed;  // Euler, positions before velocities, as in Gym
    speed += kTau * moving;
    angle += kTau * turn;
    turn += kTau * turning;
    const bool fallen = std::abs(x) > kPositionLimit || std::abs(angle) > kAngleLimit;
    return {observation(), 1, fallen || ++steps_ >= kMostSteps};
  }

 private:
  static constexpr double kGravity = 9.8, kCartMass = 1.0, kPoleMass = 0.1, kHalfLength = 0.5;
  static constexpr double kTotalMass = kCartMass + kPoleMass, kPoleMoment = kPoleMass * kHalfLength;
  static constexpr double kForce = 10, kTau = 0.02;
  static constexpr double kPositionLimit = 2.4, kAngleLimit = 12 * 2 * M_PI / 360;
  static constexpr int kMostSteps = 500;

  State observation() const {
    return {static_cast<float>(state_[0]), static_cast<float>(state_[1]),
            static_cast<float>(state_[2]), static_cast<float>(state_[3])};
  }

  std::mt19937_64 random_;
  std::array<double, 4> state_{};
  int steps_ = 0;
};
